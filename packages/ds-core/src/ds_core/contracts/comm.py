"""What an observer of collectives is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CommEvent:
    """One finished collective, as seen by the rank that called it.

    Attributes:
        op: name of the collective (`all_reduce`, `reduce_scatter_tensor`, ...).
        nbytes: bytes of this rank's input message.
        world_size: ranks in the group.
        group: name of the group.
        start: `time.perf_counter()` at launch.
        duration: seconds from launch until it was known to be done.
        waited: seconds the caller was blocked on it (equals `duration` unless asynchronous).
        label: what the caller said it is for, or "".
    """

    op: str
    nbytes: int
    world_size: int
    group: str
    start: float
    duration: float
    waited: float
    label: str = ""


CommObserver = Callable[[CommEvent], None]
