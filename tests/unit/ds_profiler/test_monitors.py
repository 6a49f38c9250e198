"""Monitors write what their readers expect, and never end a run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from ds_profiler import (
    CsvMonitor,
    MonitorMaster,
    TensorBoardMonitor,
    UsageError,
)
from ds_profiler.monitors.monitor import RankZeroMonitor
from ds_profiler.sections import (
    CsvSection,
    MonitorSections,
    TensorBoardSection,
)

EVENTS = [("Train/Samples/loss", torch.tensor(1.25), 8), ("Train/Samples/loss", 0.5, 16)]


def test_csv_has_one_file_a_label_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        monitor = CsvMonitor(CsvSection(True, str(tmp_path), "job"))
        monitor.write_events([*EVENTS, ("lr", 1e-3, 8)])
    text = (tmp_path / "job" / "Train_Samples_loss.csv").read_text()
    assert text.split() == ["step,loss", *["8,1.25", "16,0.5"] * 2]
    assert (tmp_path / "job" / "lr.csv").read_text().split()[:2] == ["step,lr", "8,0.001"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_reads_back_what_was_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monitor = TensorBoardMonitor(TensorBoardSection(True, str(tmp_path), "job"))
    monitor.write_events(EVENTS)
    monitor.close()
    reader = EventAccumulator(str(tmp_path / "job"))
    reader.Reload()
    found = [(event.step, event.value) for event in reader.Scalars("Train/Samples/loss")]
    assert found == [(8, 1.25), (16, 0.5)]


class Failing(RankZeroMonitor):
    """A back end that is full."""

    tries = 0

    def _open(self) -> None: ...

    def _write(self, events: Sequence[tuple[str, float, int]]) -> None:
        self.tries += 1
        raise OSError("disk full")

    def _close(self) -> None: ...


def test_a_failing_monitor_warns_once_and_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    monitor = Failing(enabled=True)
    with caplog.at_level(logging.WARNING):
        monitor.write_events(EVENTS)
        monitor.write_events(EVENTS)
    assert (monitor.tries, len(caplog.records)) == (1, 1)
    assert "disk full" in caplog.text


def test_a_disabled_monitor_touches_nothing(tmp_path: Path) -> None:
    CsvMonitor(CsvSection(False, str(tmp_path), "job")).write_events(EVENTS)
    assert not list(tmp_path.iterdir())


def test_the_master_writes_to_all_that_are_enabled(tmp_path: Path) -> None:
    where = {"enabled": True, "output_path": str(tmp_path)}
    config: dict[str, Any] = {
        "tensorboard": {**where, "job_name": "tb"},
        "csv_monitor": {**where, "job_name": "csv"},
        "bf16": {"enabled": True},
    }
    with MonitorMaster(MonitorSections.from_dict(config)) as master:
        assert master.enabled
        master.write_events(EVENTS)
    assert list((tmp_path / "tb").iterdir())
    assert list((tmp_path / "csv").iterdir())
    assert not MonitorMaster(MonitorSections()).enabled


def test_a_wrong_key_is_named() -> None:
    with pytest.raises(UsageError, match=r"csv_monitor\.output_pat"):
        MonitorSections.from_dict({"csv_monitor": {"output_pat": "x"}})


def test_what_is_no_number_is_left_out_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = CsvMonitor(CsvSection(True, str(tmp_path), "job"))
    bad: list[Any] = [("loss", None, 1), ("loss", torch.ones(2), 1), ("loss", 1.0)]
    with caplog.at_level(logging.WARNING):
        monitor.write_events([*bad, ("loss", 2.5, 1)])
        assert monitor.enabled
    assert (tmp_path / "job" / "loss.csv").read_text().split() == ["step,loss", "1,2.5"]
    assert len(caplog.records) == 1
    assert "('loss', None, 1)" in caplog.text
