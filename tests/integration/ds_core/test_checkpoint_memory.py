"""A save holds a few pieces at a time, a load only what was asked for."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, sys, threading, time
import psutil, torch
from ds_core.checkpoint import open_checkpoint, save
from ds_core.contracts.shard import WEIGHT, TensorShard

torch.set_num_threads(1)
PIECES, NUMEL = 50, 2_000_000  # 8 MB each, 400 MB in all
process, peak, done = psutil.Process(), 0, threading.Event()

def watch():
    global peak
    while not done.is_set():
        peak = max(peak, process.memory_info().rss)
        time.sleep(0.002)

def shards():
    for i in range(PIECES):
        yield TensorShard("w", WEIGHT, (PIECES * NUMEL,), i * NUMEL, torch.full((NUMEL,), float(i)))

folder, what = sys.argv[1:]
torch.full((NUMEL,), 1.0)
before = process.memory_info().rss
threading.Thread(target=watch, daemon=True).start()
if what == "save":
    save(folder, "t", shards=shards())
else:
    with open_checkpoint(folder) as checkpoint:
        out = torch.empty(NUMEL)
        checkpoint.reader.read("w", WEIGHT, 30 * NUMEL + 5, out)
        assert out[0] == 30 and out[-1] == 31
done.set()
print(json.dumps((peak - before) / 2**20))
"""


@pytest.mark.slow
def test_memory_of_a_400_mb_checkpoint_is_a_few_pieces(tmp_path):
    for what in ("save", "load"):
        command = [sys.executable, "-c", PROGRAM, str(tmp_path), what]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) < 110, what
