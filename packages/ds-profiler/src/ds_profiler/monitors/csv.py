"""Scalars as CSV files."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from ds_profiler.monitors.monitor import RankZeroMonitor
from ds_profiler.sections import CsvSection


class CsvMonitor(RankZeroMonitor):
    """One file a label, `output_path/job_name/Train_Samples_loss.csv`, with a row an event.

    The first line is `step,loss`. An existing file is appended to, so that a resumed run goes on
    in the same file.
    """

    def __init__(self, section: CsvSection) -> None:
        self.folder = Path(section.output_path or ".") / section.job_name
        super().__init__(enabled=section.enabled)

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def _write(self, events: Sequence[tuple[str, float, int]]) -> None:
        by_label: dict[str, list[tuple[int, float]]] = {}
        for label, value, step in events:
            by_label.setdefault(label, []).append((step, value))
        for label, rows in by_label.items():
            path = self.folder / f"{label.replace('/', '_')}.csv"
            new = not path.exists()
            with path.open("a", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                if new:
                    writer.writerow(["step", label.rpartition("/")[2]])
                writer.writerows(rows)

    def _close(self) -> None:
        """Nothing is open between writes."""
