"""Scalars for Comet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ds_profiler.errors import MissingExtra
from ds_profiler.monitors.monitor import RankZeroMonitor
from ds_profiler.sections import CometSection


class CometMonitor(RankZeroMonitor):
    """A Comet experiment; a label is sent every `samples_log_interval` samples."""

    def __init__(self, section: CometSection) -> None:
        self._section = section
        self._sent: dict[str, int] = {}
        self.experiment: Any = None
        super().__init__(enabled=section.enabled)

    def _open(self) -> None:
        try:
            import comet_ml
        except ImportError as error:
            raise MissingExtra("section 'comet'", "comet_ml", "comet") from error
        section = self._section
        self.experiment = comet_ml.start(
            api_key=section.api_key,
            project_name=section.project,
            workspace=section.workspace,
            experiment_key=section.experiment_key,
            mode=section.mode,
            online=section.online,
        )
        if section.experiment_name is not None:
            self.experiment.set_name(section.experiment_name)

    def _write(self, events: Sequence[tuple[str, float, int]]) -> None:
        for label, value, step in events:
            last = self._sent.get(label)
            if last is None or step - last >= self._section.samples_log_interval:
                self._sent[label] = step
                self.experiment.log_metric(label, value, step=step)

    def _close(self) -> None:
        self.experiment.end()
