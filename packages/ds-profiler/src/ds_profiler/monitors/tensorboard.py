"""Scalars for TensorBoard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ds_profiler.errors import MissingExtra
from ds_profiler.monitors.monitor import RankZeroMonitor
from ds_profiler.sections import TensorBoardSection


class TensorBoardMonitor(RankZeroMonitor):
    """Event files in `output_path/job_name`."""

    def __init__(self, section: TensorBoardSection) -> None:
        self.folder = Path(section.output_path or ".") / section.job_name
        self.summary_writer: Any = None
        super().__init__(enabled=section.enabled)

    def _open(self) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise MissingExtra("section 'tensorboard'", "tensorboard", "tensorboard") from error
        self.summary_writer = SummaryWriter(log_dir=str(self.folder))

    def _write(self, events: Sequence[tuple[str, float, int]]) -> None:
        for label, value, step in events:
            self.summary_writer.add_scalar(label, value, step)
        self.summary_writer.flush()

    def _close(self) -> None:
        self.summary_writer.close()
