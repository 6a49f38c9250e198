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


SIGNALS = """
import os, signal, torch
from ds_kernels import StepQueue, adam_step

torch.set_num_threads(2)
tensors = [torch.ones(1 << 20) for _ in range(4)]
before = set(os.listdir("/proc/self/task"))
adam_step(*tensors, step=1, lr=0.1)
queue = StepQueue()
adam_step(*tensors, step=2, lr=0.1, queue=queue).wait()
helpers = set(os.listdir("/proc/self/task")) - before
for helper in helpers:
    status = open(f"/proc/self/task/{helper}/status").read()
    blocked = int(status.split("SigBlk:")[1].split()[0], 16)
    print(*(blocked >> (number - 1) & 1 for number in (signal.SIGINT, signal.SIGSEGV)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_helpers_leave_signals_to_the_program() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALS], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["1 0", "1 0"]  # a helper of a step, and a queue
