"""The example with the Hugging Face Trainer, as its README runs it, with few steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "trainer"
SMALL = ["--hidden", "32", "--layers", "1", "--length", "32", "--base_steps", "2", "--batch", "4"]


def run(out: Path, *words: str) -> list[float]:
    common = ["--model", str(out.parent / "base"), "--output_dir", str(out), "--max_steps", "10"]
    done = subprocess.run(
        [*words, *SMALL, *common],
        cwd=FOLDER,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [row["loss"] for row in json.loads((out / "losses.json").read_text())]


def test_it_learns_the_same_with_and_without_deepspeed(tmp_path):
    plain = run(tmp_path / "plain", sys.executable, "train.py")
    ours = run(tmp_path / "deepspeed", sys.executable, "train.py", "--deepspeed", "ds_config.json")
    assert ours == pytest.approx(plain, rel=1e-3)
    launcher = str(Path(sys.executable).with_name("deepspeed"))
    two = [launcher, "--num_gpus", "2", "train.py", "--deepspeed", "ds_config.json"]
    assert len(run(tmp_path / "two", *two)) == len(plain)
