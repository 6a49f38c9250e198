"""What one micro-batch frees is there for the next."""

from __future__ import annotations

import subprocess
import sys

ROUNDS = """
import resource, torch
from ds_pipeline.heap import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def round():
    before = faults()
    held = [torch.ones(1 << 18) for _ in range(20)]
    return faults() - before

keep_freed_memory()
print(*(round() for _ in range(4)))
"""


def test_memory_is_not_taken_from_the_system_again_each_time():
    run = subprocess.run([sys.executable, "-c", ROUNDS], check=True, capture_output=True)
    first, *later = [int(word) for word in run.stdout.split()]
    assert first > 20 * 200  # pages of 20 MiB
    assert max(later) < first / 4
