"""Cores of this machine: how many there are, and sharing them out among ranks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from deepspeed.launcher.errors import LaunchError
from deepspeed.launcher.hosts import numbers

_SYSTEM = Path("/sys/devices/system")


def usable_cores() -> list[int]:
    """The logical cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def numa_nodes() -> int:
    """The NUMA nodes that hold at least one usable core (1 where unknown)."""
    usable = set(usable_cores())
    count = 0
    for path in _SYSTEM.glob("node/node[0-9]*/cpulist"):
        text = path.read_text().strip()
        if text and usable & set(numbers(text, what=str(path))):
            count += 1
    return max(1, count)


def physical(cores: Sequence[int]) -> list[int]:
    """One logical core of each physical one."""
    seen: set[str] = set()
    kept = []
    for core in cores:
        siblings = str(core)
        with contextlib.suppress(OSError):
            path = _SYSTEM / f"cpu/cpu{core}/topology/thread_siblings_list"
            siblings = path.read_text().strip()
        if siblings not in seen:
            seen.add(siblings)
            kept.append(core)
    return kept


def core_quota() -> float:
    """Cores' worth of time that the control group of this process allows."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return int(quota) / int(period)
    return float("inf")


def threads_a_rank(ranks: int) -> int:
    """A value for OMP_NUM_THREADS that neither idles nor crowds the machine."""
    cores = min(float(len(physical(usable_cores()))), core_quota())
    return max(1, int(cores / ranks))


def share(cores: Sequence[int], ranks: int) -> list[list[int]]:
    """Split `cores` into one run of equal length a rank, neighbours together."""
    each = len(cores) // ranks
    if each < 1:
        raise LaunchError(f"--bind_cores_to_rank: {len(cores)} cores cannot serve {ranks} ranks")
    return [list(cores[rank * each : (rank + 1) * each]) for rank in range(ranks)]


def cores_to_bind(core_list: str | None) -> list[int]:
    """The cores that ranks are bound to: those listed, or one of each physical core."""
    usable = usable_cores()
    if core_list is None:
        return physical(usable)
    listed = sorted(set(numbers(core_list, what="--bind_core_list")))
    missing = [core for core in listed if core not in usable]
    if missing:
        raise LaunchError(
            f"--bind_core_list {core_list}: this machine has no usable core {missing[0]}"
        )
    return listed
