"""Process trees: who descends from whom, and ending all of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans(adopt: bool = True) -> None:
    """Make this process the parent of descendants whose own parent ends (Linux).

    So that no descendant can leave the tree, `daemon`-like double forks included.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)


def before_exec(cores: Iterable[int] = ()) -> Callable[[], None]:
    """What a child runs between fork and exec: die with this process, stay on `cores`."""
    parent, cores = os.getpid(), set(cores)
    prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None

    def prepare() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if cores and sys.platform == "linux":
            os.sched_setaffinity(0, cores)
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:  # it died before prctl
                os._exit(1)

    return prepare


def descendants(roots: Iterable[int]) -> list[int]:
    """The live processes below each of `roots`, parents first; zombies are left out."""
    children: dict[int, list[tuple[int, bool]]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            # the name, in brackets, may hold spaces and brackets itself
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            children.setdefault(int(parent), []).append((int(entry.name), state not in "ZX"))
    found: list[int] = []
    pending = list(roots)
    while pending:
        for pid, live in children.get(pending.pop(0), ()):
            pending.append(pid)
            if live:
                found.append(pid)
    return found


def send(pid: int, number: int, *, group: bool = False) -> None:
    """Send a signal to a process or to its group, which may have ended meanwhile."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, number)


def kill_descendants(root: int, *, spare: Iterable[int] = (), timeout: float = 3.0) -> None:
    """SIGKILL everything below `root` until nothing is left, children in `spare` excepted."""
    spared = set(spare)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        kept = spared | set(descendants(spared))
        live = [pid for pid in descendants([root]) if pid not in kept]
        if not live:
            return
        for pid in live:
            send(pid, signal.SIGKILL)
        time.sleep(0.02)
