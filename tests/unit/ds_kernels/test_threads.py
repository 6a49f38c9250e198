"""Where the helpers of a step run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

STEP = """
import os, torch
from ds_kernels import CPUAdam

param = torch.nn.Parameter(torch.ones(1 << 20))
param.grad = torch.ones_like(param)
optimizer = CPUAdam([param])
torch.set_num_threads({threads})
before = set(os.listdir("/proc/self/task"))
optimizer.step()
for helper in set(os.listdir("/proc/self/task")) - before:
    print(*sorted(os.sched_getaffinity(int(helper))))
"""


def places(threads: int, pinned: set[int]) -> list[set[int]]:
    """Processors that each helper may use after a step of a caller pinned to `pinned`."""
    done = subprocess.run(
        [sys.executable, "-c", STEP.format(threads=threads)],
        preexec_fn=lambda: os.sched_setaffinity(0, pinned),
        capture_output=True,
        text=True,
        check=True,
    )
    return [{int(place) for place in line.split()} for line in done.stdout.splitlines()]


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is Linux's")
def test_helpers_keep_off_the_callers_processor() -> None:
    allowed = os.sched_getaffinity(0)
    (helper,) = places(2, allowed)
    assert len(helper) == max(1, len(allowed) - 1)
    assert helper <= allowed


@pytest.mark.skipif(sys.platform != "linux", reason="affinity is Linux's")
def test_a_caller_with_one_processor_shares_it() -> None:
    only = {min(os.sched_getaffinity(0))}
    assert places(3, only) == [only, only]
