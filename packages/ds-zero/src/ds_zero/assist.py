"""Lets a rank take part in gathers that only other ranks have a use for.

If a branch is taken on one rank only, that rank waits for shares which the others have no reason
to send. Here it says so in the group's store after a moment, and a thread on each of the others
joins in: sends the share, and throws away what it receives. A count per message makes sure that
each rank takes part in each gather exactly once, as itself or as a helper.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
import weakref
from collections import Counter
from collections.abc import Callable

import torch.distributed as dist

from ds_core.comm import Communicator
from ds_core.contracts import Pending

Key = tuple[int, ...]
"""The parameters of one message, by their place in the table of all parameters."""

PATIENCE = 0.03
"""Seconds of waiting before a rank looks whether others ask."""
FIRST_ASK = 0.5
"""Seconds before a rank asks; half as long with each time it had to ask for the same, or in a row.

A rank that is merely late comes by itself, and its help would be one more gather; one that takes
another branch does so again.
"""
_TICK, _IDLE = 0.01, 0.5


class Assistance:
    """Asks for help with gathers, and gives it.

    Args:
        comm: the group.
        join: `join(key)` starts this rank's part of a gather whose result it does not need.
    """

    def __init__(self, comm: Communicator, join: Callable[[Key], Pending]) -> None:
        self._comm, self._join = comm, join
        self._prefix = f"ds_zero/ask/{comm.broadcast_object(uuid.uuid4().hex, 0)}"
        self._store = dist.distributed_c10d._get_default_store()
        self._counts: Counter[Key] = Counter()
        self._lock = threading.Lock()
        self._helping: list[Pending] = []
        self._wait: tuple[float, Key | None, int] | None = None
        self._asked: tuple[Key, int] | None = None
        self._asks: Counter[Key] = Counter()
        self._in_a_row = 0
        self._active = time.monotonic()
        self._stop = threading.Event()
        loop = _Loop(weakref.ref(self), self._stop)
        self._thread = threading.Thread(target=loop.run, name="ds_zero assistance", daemon=True)
        self._thread.start()

    def launch(self, key: Key, start: Callable[[], Pending]) -> Pending:
        """Start a gather of this rank's own."""
        with self._lock:
            self._counts[key] += 1
            self._active = time.monotonic()
            return Watched(self, start(), key, self._counts[key])

    def watch(self, work: Pending) -> Pending:
        """Other work during whose wait this rank can help."""
        return Watched(self, work, None, 0)

    def waits(self, key: Key | None, number: int) -> None:
        """The main thread starts to wait."""
        self._wait = (time.monotonic(), key, number)

    def goes_on(self) -> None:
        """The main thread has got what it waited for."""
        if self._wait is not None and self._wait[1] is not None and self._wait[1:] != self._asked:
            self._in_a_row = 0
        self._wait = None
        self._active = time.monotonic()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()

    def tick(self) -> None:
        """Ask or help if it is time to; called by the thread."""
        now, wait = time.monotonic(), self._wait
        self._helping = [work for work in self._helping if not work.done()]  # frees their memory
        waited = wait is not None and now - wait[0] > PATIENCE
        if wait is not None and wait[1] is not None and now - wait[0] > self._patience(wait[1]):
            self._ask(wait[1], wait[2])
        if waited or now - self._active > _IDLE:
            self._look()

    def _patience(self, key: Key) -> float:
        return max(PATIENCE, FIRST_ASK * 0.5 ** max(self._asks[key], self._in_a_row))

    def _ask(self, key: Key, number: int) -> None:
        if self._asked != (key, number):
            self._asked = (key, number)
            self._asks[key] += 1
            self._in_a_row += 1
            self._store.set(f"{self._prefix}/{self._comm.rank}", json.dumps([list(key), number]))

    def _look(self) -> None:
        for rank in range(self._comm.world_size):
            place = f"{self._prefix}/{rank}"
            if rank == self._comm.rank or not self._store.check([place]):
                continue
            members, number = json.loads(self._store.get(place))
            key = tuple(members)
            with self._lock:
                if self._counts[key] < number:
                    self._counts[key] += 1
                    self._helping.append(self._join(key))


class _Loop:
    """The thread's body; it keeps nothing alive but the store."""

    def __init__(self, owner: weakref.ref[Assistance], stop: threading.Event) -> None:
        self._owner, self._stop = owner, stop

    def run(self) -> None:
        while not self._stop.wait(_TICK):
            owner = self._owner()
            if owner is None:
                return
            try:
                owner.tick()
            except (RuntimeError, ConnectionError):
                return  # the group is gone; whoever still waits is told by the timeout
            del owner


class Watched:
    """Work whose wait is known to the assistance."""

    def __init__(self, assist: Assistance, work: Pending, key: Key | None, number: int) -> None:
        self._assist, self._work, self._key, self._number = assist, work, key, number

    def wait(self) -> None:
        self._assist.waits(self._key, self._number)
        try:
            self._work.wait()
        finally:
            self._assist.goes_on()

    def done(self) -> bool:
        return self._work.done()
