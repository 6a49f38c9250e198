"""Weights & Biases and Comet, for real, offline."""

from __future__ import annotations

import json
import time
import zipfile
from pathlib import Path

import pytest

from ds_profiler import CometMonitor, WandbMonitor
from ds_profiler.sections import CometSection, WandbSection

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

EVENTS = [("Train/Samples/loss", value, step) for value, step in ((1.25, 8), (0.5, 16), (0.25, 20))]


def test_wandb_keeps_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monitor = WandbMonitor(WandbSection(True, project="test", group="tests"))
    monitor.write_events(EVENTS[:1])
    monitor.write_events([("Train/Samples/lr", 1e-3, 8), *EVENTS[1:]])
    assert monitor.run.summary["Train/Samples/loss"] == 0.5  # 20 is kept open for more labels
    assert monitor.run.summary["Train/Samples/lr"] == 1e-3
    monitor.close()
    (written,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    deadline = time.monotonic() + 60  # wandb's service may write after `finish` has returned
    while b"Train/Samples/loss" not in written.read_bytes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert b"Train/Samples/loss" in written.read_bytes()


def test_comet_keeps_an_offline_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMET_OFFLINE_DIRECTORY", str(tmp_path))
    monkeypatch.setenv("COMET_LOGGING_CONSOLE", "ERROR")
    monitor = CometMonitor(
        CometSection(
            True,
            samples_log_interval=8,
            project="test",
            api_key="offline",
            experiment_name="named",
            online=False,
            mode="create",
        )
    )
    monitor.write_events(EVENTS)
    monitor.close()
    (archive,) = tmp_path.glob("*.zip")
    with zipfile.ZipFile(archive) as content:
        lines = [json.loads(line) for line in content.read("messages.json").splitlines()]
    metrics = [line["payload"]["metric"] for line in lines if line["type"] == "metric_msg"]
    found = [
        (metric["metricValue"], metric["step"])
        for metric in metrics
        if metric["metricName"] == "Train/Samples/loss"
    ]
    assert found == [(1.25, 8), (0.5, 16)]  # 20 comes too soon after 16
