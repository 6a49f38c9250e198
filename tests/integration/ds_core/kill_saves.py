"""Forks processes that save checkpoints, kills them, and looks at what is left.

Run as a program of its own: `python kill_saves.py FOLDER MODE`. It stays single-threaded, so that
forking is safe and cheap. Prints one JSON line.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from ds_core.checkpoint import AsyncSaver, open_checkpoint, save, tags
from ds_core.contracts.shard import WEIGHT, TensorShard

NUMEL = 200_000
KINDS = ("new tag", "same tag", "asynchronous", "two ranks")


class PipeRank:
    """One of two ranks, joined by a pipe."""

    world_size = 2

    def __init__(self, rank: int, pipe: Connection) -> None:
        self.rank, self._pipe = rank, pipe

    def all_gather_object(self, obj: Any, *, label: str = "") -> list[Any]:
        self._pipe.send(obj)
        other = self._pipe.recv()
        return [obj, other] if self.rank == 0 else [other, obj]

    def broadcast_object(self, obj: Any, src: int, *, label: str = "") -> Any:
        return self.all_gather_object(obj)[src]


def shards(value: int) -> list[TensorShard]:
    tensors = {WEIGHT: torch.full((NUMEL,), float(value)), "exp_avg": torch.full((9,), -value)}
    return [TensorShard("w", slot, tuple(t.shape), 0, t) for slot, t in tensors.items()]


def save_once(folder: Path, kind: str, value: int) -> None:
    tag = "same" if kind == "same tag" else f"step{value}"
    state = {"state": {"value": value}, "rank_state": {"rng": torch.get_rng_state()}}
    if kind == "two ranks":
        save_by_two(folder, tag, value, state)
    elif kind == "asynchronous":
        with AsyncSaver() as saver:
            saver.save(folder, tag, shards=shards(value), **state)
    else:
        save(folder, tag, shards=shards(value), **state)


def save_by_two(folder: Path, tag: str, value: int, state: dict[str, Any]) -> None:
    """Rank 1 is a child of this process, in its process group."""
    ends = Pipe()
    halves = [replace(s, piece=s.piece[: s.piece.numel() // 2]) for s in shards(value)]
    rests = [
        replace(s, start=h.piece.numel(), piece=s.piece[h.piece.numel() :])
        for s, h in zip(shards(value), halves, strict=True)
    ]

    def second() -> None:
        ends[0].close()
        save(folder, tag, shards=rests, comm=PipeRank(1, ends[1]), **state)

    child = fork(second)
    ends[1].close()
    save(folder, tag, shards=halves, comm=PipeRank(0, ends[0]), **state)
    ends[0].close()
    assert os.waitpid(child, 0)[1] == 0


def fork(work: Callable[[], Any]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return child


def check(folder: Path, least: int, most: int) -> int:
    """The checkpoint that `latest` names is whole and not older than `least`."""
    with open_checkpoint(folder) as checkpoint:
        value = checkpoint.state["value"]
        assert least <= value <= most, f"found {value}, not {least}..{most}"
        assert checkpoint.reader.whole("w", WEIGHT).unique().tolist() == [float(value)]
    for tag in tags(folder):
        open_checkpoint(folder, tag).close()
    return value


def random_instants(folder: Path, rounds: int) -> dict[str, int]:
    """Kill a process that saves for ever, at a random time after its first save has begun."""
    chooser, kept, moved = random.Random(7), 0, 0
    reach = 0.015  # seconds; follows the speed of the machine, so that both outcomes are met
    for index in range(rounds):
        root = folder / f"{index}"
        kind = KINDS[index % len(KINDS)]
        save_once(root, kind, 1)
        begun, ready = os.pipe()

        def save_for_ever(root: Path = root, kind: str = kind, ready: int = ready) -> None:
            os.setpgid(0, 0)
            value = 2
            os.write(ready, b"x")
            while True:
                save_once(root, kind, value)
                value += 1

        child = fork(save_for_ever)
        os.read(begun, 1)
        time.sleep(chooser.uniform(0, reach))
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        wait_for_group(child)
        value = check(root, 1, 10**6)
        kept, moved = kept + (value == 1), moved + (value > 1)
        reach *= 1.1 if value == 1 else 0.9
        save_once(root, kind, value + 1)
        assert check(root, value + 1, value + 1)
        assert not [name for name in os.listdir(root) if name.startswith(".")], os.listdir(root)
        shutil.rmtree(root)
        os.close(begun)
        os.close(ready)
    return {"rounds": rounds, "earlier": kept, "later": moved}


def wait_for_group(leader: int) -> None:
    """Until every process of the group is gone (those of two ranks are not all our children)."""
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.killpg(leader, 0)
            time.sleep(0.001)


CALLS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir", "open", "close")


@contextlib.contextmanager
def dies_at(call: int) -> Iterator[None]:
    """Kill this process just before its `call`-th call that changes the file system."""
    count = 0
    for name in CALLS:
        real = getattr(os, name)

        def counting(*args: Any, _real: Callable[..., Any] = real, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            if count == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return _real(*args, **kwargs)

        setattr(os, name, counting)
    yield


def every_call(folder: Path, kind: str) -> dict[str, int]:
    """Kill a save before each of its calls in turn, until one survives."""
    earlier = later = 0
    for call in range(1, 1000):
        root = folder / f"{call}"
        save_once(root, kind, 1)

        def dying_save(root: Path = root, call: int = call) -> None:
            with dies_at(call):
                save_once(root, kind, 2)

        status = os.waitpid(fork(dying_save), 0)[1]
        value = check(root, 1, 2)
        if status == 0:
            assert value == 2
            return {"calls": call - 1, "earlier": earlier, "later": later}
        earlier, later = earlier + (value == 1), later + (value == 2)
        assert os.WTERMSIG(status) == signal.SIGKILL
        shutil.rmtree(root)
    raise AssertionError("no save survived")


if __name__ == "__main__":
    torch.set_num_threads(1)
    where, mode = Path(sys.argv[1]), sys.argv[2]
    if mode == "random":
        print(json.dumps(random_instants(where, int(sys.argv[3]))))
    else:
        print(json.dumps(every_call(where, mode)))
