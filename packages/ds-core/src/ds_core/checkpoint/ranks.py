"""What a checkpoint needs of the group of ranks that writes or reads it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch.distributed as dist

from ds_core.errors import CheckpointError, ConfigError, DSError, RankMismatchError


class Ranks(Protocol):
    """A group of ranks that can exchange small objects. All ranks make the same calls.

    `label` says what for, in the message of a rank that waits in vain.
    """

    @property
    def rank(self) -> int: ...

    @property
    def world_size(self) -> int: ...

    def all_gather_object(self, obj: Any, *, label: str = "") -> list[Any]:
        """Everyone's `obj`, in rank order."""

    def broadcast_object(self, obj: Any, src: int, *, label: str = "") -> Any:
        """The `obj` of rank `src`."""


class SoloRank:
    """The group of a program that runs alone."""

    rank = 0
    world_size = 1

    def all_gather_object(self, obj: Any, *, label: str = "") -> list[Any]:
        return [obj]

    def broadcast_object(self, obj: Any, src: int, *, label: str = "") -> Any:
        return obj


class GroupRanks:
    """The ranks of a `torch.distributed` process group (the default group if none is given)."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank: int = dist.get_rank(group)
        self.world_size: int = dist.get_world_size(group)

    def all_gather_object(self, obj: Any, *, label: str = "") -> list[Any]:
        everyone: list[Any] = [None] * self.world_size
        dist.all_gather_object(everyone, obj, group=self._group)
        return everyone

    def broadcast_object(self, obj: Any, src: int, *, label: str = "") -> Any:
        box = [obj]
        source = src if self._group is None else dist.get_global_rank(self._group, src)
        dist.broadcast_object_list(box, src=source, group=self._group)
        return box[0]


@contextmanager
def together(ranks: Ranks, doing: str) -> Iterator[None]:
    """Leave the block on every rank, or raise on every rank.

    The rank that failed raises its own error (an `OSError` as `CheckpointError`); the others
    raise one that names it. Ends with one exchange among all ranks.
    """
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    raise_together(ranks, doing, failure)


def raise_together(ranks: Ranks, doing: str, failure: Exception | None) -> None:
    """Tell all ranks about this rank's `failure`; raise if any rank has one."""
    report = None if failure is None else (type(failure).__name__, str(failure))
    reports = ranks.all_gather_object(report, label=doing)
    if failure is not None:
        if isinstance(failure, OSError) and not isinstance(failure, DSError):
            raise CheckpointError(f"{doing} failed: {failure}") from failure
        raise failure
    for rank, other in enumerate(reports):
        if other is not None:
            kind, message = other
            known = {"RankMismatchError": RankMismatchError, "ConfigError": ConfigError}
            error = known.get(kind, CheckpointError)
            raise error(f"{doing} failed on rank {rank}: {kind}: {message}")
