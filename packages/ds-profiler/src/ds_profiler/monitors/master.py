"""Several monitors as one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ds_profiler.monitors.comet import CometMonitor
from ds_profiler.monitors.csv import CsvMonitor
from ds_profiler.monitors.monitor import Event, RankZeroMonitor
from ds_profiler.monitors.tensorboard import TensorBoardMonitor
from ds_profiler.monitors.wandb import WandbMonitor
from ds_profiler.sections import MonitorSections


class MonitorMaster:
    """Writes to every back end that is enabled in `config`."""

    def __init__(self, config: MonitorSections) -> None:
        self.monitor_config = config
        self.tb_monitor = TensorBoardMonitor(config.tensorboard)
        self.wandb_monitor = WandbMonitor(config.wandb)
        self.comet_monitor = CometMonitor(config.comet)
        self.csv_monitor = CsvMonitor(config.csv_monitor)

    @property
    def enabled(self) -> bool:
        """Whether any back end takes events."""
        return any(monitor.enabled for monitor in self._all())

    def write_events(self, event_list: Sequence[Event]) -> None:
        """Write `[(label, value, step), ...]` to all of them."""
        for monitor in self._all():
            monitor.write_events(event_list)

    def close(self) -> None:
        """Finish all of them."""
        for monitor in self._all():
            monitor.close()

    def _all(self) -> tuple[RankZeroMonitor, ...]:
        return (self.tb_monitor, self.wandb_monitor, self.comet_monitor, self.csv_monitor)

    def __enter__(self) -> MonitorMaster:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()
