"""Runs a keeper in its own process, so that neither can be killed without the other tidying up."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

from deepspeed.launcher import tree
from deepspeed.launcher.keeper import Command, pack

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def supervise(commands: Sequence[Command]) -> int:
    """Run `commands` as one job below a keeper; forward signals to it; return its exit code.

    When this process is killed the keeper ends all ranks; when the keeper is killed this process
    adopts what it left (Linux) and ends that. Children that this process already has are spared.
    """
    spared = tree.descendants([os.getpid()])
    tree.adopt_orphans()
    try:
        with _blocked(), _keeper(commands) as keeper, _forwarding_to(keeper):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
            code = keeper.wait()
        if code < 0:
            tree.kill_descendants(os.getpid(), spare=spared)
            sys.stderr.write(f"deepspeed: the launcher's keeper was killed by signal {-code}\n")
            return 128 - code
        return code
    finally:
        tree.adopt_orphans(False)


@contextlib.contextmanager
def _keeper(commands: Sequence[Command]) -> Iterator[subprocess.Popen[bytes]]:
    commands_read, commands_write = os.pipe()
    parent_read, parent_write = os.pipe()
    module = [sys.executable, "-u", "-m", "deepspeed.launcher.keeper"]
    process = subprocess.Popen(
        [*module, str(commands_read), str(parent_read)],
        pass_fds=(commands_read, parent_read),
        start_new_session=True,
    )
    os.close(commands_read)
    os.close(parent_read)
    try:
        with open(commands_write, "wb") as file:
            file.write(pack(commands))
        yield process
    finally:
        os.close(parent_write)


@contextlib.contextmanager
def _blocked() -> Iterator[None]:
    """No signal is lost between the keeper's start and our readiness to forward it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _forwarding_to(keeper: subprocess.Popen[bytes]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # handlers can be set by the main thread only
        return
    before = {
        number: signal.signal(number, lambda number, _: tree.send(keeper.pid, number))
        for number in _FORWARDED
        if signal.getsignal(number) is not signal.SIG_IGN or number != signal.SIGHUP  # nohup
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
