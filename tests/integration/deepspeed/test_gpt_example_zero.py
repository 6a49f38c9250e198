"""The main job runs sharded and offloaded, with the losses it has otherwise."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "gpt"
SMALL = ["--layers", "1", "--width", "32", "--heads", "2", "--context", "32", "--steps", "6"]
PACE = ["--save-every", "6", "--valid-every", "6", "--valid-batches", "1"]


def losses(out: Path, *more: str) -> list[float]:
    command = [sys.executable, str(EXAMPLE / "quickstart.py"), "--out", str(out), *SMALL, *PACE]
    done = subprocess.run([*command, *more], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "a sample of the model's writing" in done.stdout
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [row["loss"] for row in rows if "loss" in row]


@pytest.mark.slow
def test_sharded_and_offloaded_jobs_have_the_losses_of_the_plain_one(tmp_path):
    plain = losses(tmp_path / "plain")
    assert len(plain) == 6
    assert losses(tmp_path / "two", "--zero", "2") == pytest.approx(plain, rel=1e-4)
    nvme = ["--zero", "3", "--offload", "nvme"]
    assert losses(tmp_path / "three", *nvme) == pytest.approx(plain, rel=1e-4)
