"""Scalars for Weights & Biases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ds_profiler.errors import MissingExtra
from ds_profiler.monitors.monitor import RankZeroMonitor
from ds_profiler.sections import WandbSection


class WandbMonitor(RankZeroMonitor):
    """A run of project `project`; offline where wandb is told to be (`WANDB_MODE=offline`)."""

    def __init__(self, section: WandbSection) -> None:
        self._section = section
        self.run: Any = None
        super().__init__(enabled=section.enabled)

    def _open(self) -> None:
        try:
            import wandb
        except ImportError as error:
            raise MissingExtra("section 'wandb'", "wandb", "wandb") from error
        section = self._section
        self.run = wandb.init(project=section.project, group=section.group, entity=section.team)

    def _write(self, events: Sequence[tuple[str, float, int]]) -> None:
        by_step: dict[int, dict[str, float]] = {}
        for label, value, step in events:
            by_step.setdefault(step, {})[label] = value
        for step in sorted(by_step):
            self.run.log(by_step[step], step=step)

    def _close(self) -> None:
        self.run.finish()
