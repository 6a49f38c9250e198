"""What every step writes to the monitors: loss, learning rate, loss scale."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from ds_profiler.monitors import CometMonitor, CsvMonitor, TensorBoardMonitor, WandbMonitor
from ds_profiler.monitors.monitor import RankZeroMonitor


class StepEvent(Protocol):
    """The facts of a finished step that are written (`ds_core.contracts.StepEvent`)."""

    @property
    def samples(self) -> int: ...
    @property
    def loss(self) -> Tensor | None: ...
    @property
    def lr(self) -> tuple[float, ...]: ...
    @property
    def loss_scale(self) -> float: ...


class Context(Protocol):
    """What is looked at while the hook is made."""

    @property
    def monitors(self) -> list[Any]: ...


class ScalarsHook:
    """Writes a step's scalars, against the samples trained on so far, to one monitor."""

    def __init__(self, key: str, monitor: RankZeroMonitor) -> None:
        self.key = key
        self._monitor = monitor

    def after_step(self, event: StepEvent) -> None:
        """Write. Reading the loss waits for the device, so only rank 0's monitor does."""
        if not self._monitor.enabled:
            return
        events: list[tuple[str, Any, int]] = []
        if event.loss is not None:
            events.append(("Train/Samples/train_loss", event.loss, event.samples))
        if event.lr:
            events.append(("Train/Samples/lr", event.lr[0], event.samples))
        if event.loss_scale != 1.0:
            events.append(("Train/Samples/loss_scale", event.loss_scale, event.samples))
        self._monitor.write_events(events)

    def close(self) -> None:
        """Finish writing."""
        self._monitor.close()


def make_tensorboard_hook(section: Any, context: Context) -> ScalarsHook | None:
    """For section `tensorboard`."""
    return _make("tensorboard", TensorBoardMonitor, section, context)


def make_wandb_hook(section: Any, context: Context) -> ScalarsHook | None:
    """For section `wandb`."""
    return _make("wandb", WandbMonitor, section, context)


def make_comet_hook(section: Any, context: Context) -> ScalarsHook | None:
    """For section `comet`."""
    return _make("comet", CometMonitor, section, context)


def make_csv_hook(section: Any, context: Context) -> ScalarsHook | None:
    """For section `csv_monitor`."""
    return _make("csv_monitor", CsvMonitor, section, context)


def _make(
    key: str, kind: type[RankZeroMonitor], section: Any, context: Context
) -> ScalarsHook | None:
    """The hook for the monitor of that kind, which the meta-package made from the same section."""
    if not section.enabled:
        return None
    monitor = next((one for one in context.monitors if isinstance(one, kind)), None)
    return None if monitor is None else ScalarsHook(key, monitor)
