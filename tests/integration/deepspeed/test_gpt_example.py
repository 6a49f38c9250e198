"""The main job learns on two processes, and goes on after kill -9 as if nothing had happened."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "gpt"
SMALL = ["--layers", "1", "--width", "32", "--heads", "2", "--context", "32", "--steps", "24"]
PACE = ["--save-every", "8", "--valid-every", "8", "--valid-batches", "1"]


def command(out, *more):
    return [sys.executable, str(EXAMPLE / "quickstart.py"), "--out", str(out), *SMALL, *PACE, *more]


def run(out, *more):
    done = subprocess.run(command(out, *more), capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def losses(out, first=0):
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {row["step"]: row["loss"] for row in rows if "loss" in row and row["step"] > first}


def processes_of(out):
    """Every process that has this run's folder in its command line."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if entry.name.isdecimal() and str(out).encode() in line:
            found.append(int(entry.name))
    return found


def kill_everything_after_step(out, step):
    """Start a run and SIGKILL all of its processes once it has passed `step`."""
    starter = subprocess.Popen(command(out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not (out / "metrics.jsonl").exists() or max(losses(out), default=0) <= step:
        assert time.monotonic() < deadline, "the run did not get that far"
        time.sleep(0.02)
    for process in processes_of(out):
        os.kill(process, signal.SIGKILL)
    starter.wait()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole")
    return out, run(out)


@pytest.mark.slow
def test_the_loss_falls_and_everything_is_left_behind(whole):
    out, printed = whole
    found = losses(out)
    assert len(found) == 24
    assert found[24] < found[1] - 0.3
    assert "a sample of the model's writing" in printed
    assert (out / "loss.png").stat().st_size > 5_000
    assert list((out / "events").iterdir())
    assert (out / "checkpoints" / "latest").read_text().strip() == "global_step24"


@pytest.mark.slow
def test_a_killed_run_resumes_with_the_losses_it_would_have_had(whole, tmp_path):
    kill_everything_after_step(tmp_path, 12)
    printed = run(tmp_path, "--resume")
    assert "resumed from" in printed
    assert losses(tmp_path) == losses(whole[0])


@pytest.mark.slow
def test_a_finished_run_says_so_and_its_sample_harms_no_terminal(whole):
    printed = run(whole[0], "--resume")
    assert "this run is finished already" in printed
    sample = printed.partition("a sample of the model's writing ---")[2]
    assert all(c.isprintable() or c in "\n\t" for c in sample)


@pytest.mark.slow
def test_one_process_trains_too(tmp_path):
    done = subprocess.run(
        [sys.executable, str(EXAMPLE / "train.py"), "--out", str(tmp_path), *SMALL, *PACE],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(losses(tmp_path)) == 24
