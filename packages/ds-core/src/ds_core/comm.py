"""Collectives of one process group, which observers can tap and which never hang in silence."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from ds_core import single
from ds_core.contracts.comm import CommEvent, CommObserver
from ds_core.contracts.store import Pending
from ds_core.errors import CollectiveTimeout, ConfigError, RankMismatchError
from ds_core.objects import gather, spread

logger = logging.getLogger(__name__)


@dataclass
class Taps:
    """The observers of one engine's collectives; shared by all of its communicators."""

    observers: list[CommObserver] = field(default_factory=list)

    def add(self, observer: CommObserver) -> Callable[[], None]:
        """Call `observer` after each collective; the returned function removes it."""
        self.observers.append(observer)

        def remove() -> None:
            if observer in self.observers:
                self.observers.remove(observer)

        return remove


class Communicator:
    """The collectives of one group; a group of one needs no `torch.distributed`.

    Tensors are reduced in place. With `async_op=True` the caller keeps the tensors alive and
    untouched until `wait()`. Ranks named in arguments are ranks *in the group*.

    Args:
        group: the process group; None is the world (or this process alone, if
            `torch.distributed` is not initialised).
        name: what error messages and observers call the group.
        taps: observers, shared between communicators of one engine.
        check: compare each call (operation, label, size, dtype) over all ranks before it is
            made, and raise `RankMismatchError` instead of waiting for ever. Slow; for debugging.

    Attributes:
        patience: after this long a wait on the CPU is told as a warning, and goes on.
    """

    patience: ClassVar[timedelta] = timedelta(seconds=60)

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        name: str = "world",
        taps: Taps | None = None,
        check: bool = False,
    ) -> None:
        self.group = group
        self.name = name
        self.taps = taps if taps is not None else Taps()
        self._check = check
        self._calls = 0
        if dist.is_available() and dist.is_initialized():
            self.rank = dist.get_rank(group)
            self.world_size = dist.get_world_size(group)
            self._is_gloo = "gloo" in dist.get_backend(group)
            if self.rank < 0:
                raise ConfigError(f"this process is not a member of the group '{name}'")
        else:
            if group is not None:
                raise ConfigError(f"group '{name}' given, but torch.distributed is not initialised")
            self.rank, self.world_size, self._is_gloo = 0, 1, False

    @classmethod
    def alone(cls, taps: Taps | None = None, *, name: str = "alone") -> Communicator:
        """A group of this process only, whatever `torch.distributed` knows."""
        self = cls.__new__(cls)
        self.group, self.name, self.taps = None, name, taps if taps is not None else Taps()
        self._check, self._calls, self.rank, self.world_size = False, 0, 0, 1
        self._is_gloo = False
        return self

    @property
    def device(self) -> torch.device:
        """A device whose tensors this group can send."""
        backend = "gloo" if self.world_size == 1 else dist.get_backend(self.group)
        if "gloo" in backend or "mpi" in backend:
            return torch.device("cpu")
        accelerator = torch.accelerator.current_accelerator()
        assert accelerator is not None
        return accelerator

    def global_rank(self, rank: int) -> int:
        """The rank in the world of a rank in this group."""
        if self.world_size == 1 and not dist.is_initialized():
            return 0
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    def all_reduce(
        self,
        tensor: Tensor,
        *,
        op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM,
        label: str = "",
        async_op: bool = False,
    ) -> Pending:
        """Reduce `tensor` over the group, in place."""
        return self.run(
            "all_reduce",
            lambda: dist.all_reduce(tensor, op=op, group=self.group, async_op=True),
            tensor,
            label,
            async_op,
        )

    def reduce_scatter(
        self, out: Tensor, tensor: Tensor, *, label: str = "", async_op: bool = False
    ) -> Pending:
        """Sum flat `tensor` (world * n elements) over the group; rank r gets piece r in `out`."""
        if self.world_size == 1:
            out.copy_(tensor)
        return self.run(
            "reduce_scatter",
            lambda: single.reduce_scatter(out, tensor, self.group),
            tensor,
            label,
            async_op,
        )

    def all_gather(
        self, out: Tensor, tensor: Tensor, *, label: str = "", async_op: bool = False
    ) -> Pending:
        """Collect each rank's flat `tensor` (n elements) in `out` (world * n), by rank."""
        if self.world_size == 1 and out.data_ptr() != tensor.data_ptr():
            out.copy_(tensor)
        return self.run(
            "all_gather",
            lambda: single.all_gather(out, tensor, self.group),
            tensor,
            label,
            async_op,
        )

    def broadcast(
        self, tensor: Tensor, src: int, *, label: str = "", async_op: bool = False
    ) -> Pending:
        """Copy rank `src`'s `tensor` to all, in place."""
        if tensor.is_floating_point() and tensor.element_size() == 1:
            tensor = tensor.view(torch.uint8)  # gloo knows no floats of 8 bits
        return self.run(
            "broadcast",
            lambda: dist.broadcast(tensor, self.global_rank(src), group=self.group, async_op=True),
            tensor,
            label,
            async_op,
        )

    def sum_number(self, value: float, *, label: str = "") -> float:
        """The sum of a number over the group, in fp64."""
        if self.world_size == 1:
            return value
        box = torch.tensor([value], dtype=torch.float64, device=self.device)
        self.all_reduce(box, label=label).wait()
        return float(box.item())

    def barrier(self, label: str = "") -> None:
        """Return once every rank has arrived."""
        self.run(
            "barrier", lambda: dist.barrier(group=self.group, async_op=True), None, label, False
        )

    def all_gather_object(self, value: Any, *, label: str = "") -> list[Any]:
        """Each rank's picklable `value`, by rank; meant for small, rare things."""
        if self.world_size == 1:
            return [value]
        every: list[Any] = self._guard(
            "all_gather_object", label, lambda what: gather(self, value, what)
        )
        return every

    def broadcast_object(self, value: Any, src: int, *, label: str = "") -> Any:
        """Rank `src`'s picklable `value` on every rank."""
        if self.world_size == 1:
            return value
        return self._guard("broadcast_object", label, lambda what: spread(self, value, src, what))

    def run(
        self,
        op: str,
        launch: Callable[[], dist.Work | None],
        tensor: Tensor | None,
        label: str,
        async_op: bool,
    ) -> Pending:
        """Make a collective of any kind: `launch` starts it and returns its work.

        It is counted, compared over the ranks if that was asked for, timed for observers, and its
        failure is explained, like those above.
        """
        self._calls += 1
        if self.world_size == 1:
            return DONE
        if self._check:
            self._compare(op, tensor, label)
        start = time.perf_counter()
        work = _Collective(self, op, label, launch(), tensor, start, self._calls)
        if not async_op:
            work.wait()
        return work

    def _compare(self, op: str, tensor: Tensor | None, label: str) -> None:
        mine = (op, label, None if tensor is None else (tensor.numel(), str(tensor.dtype)))
        seen = self.all_gather_object(mine)
        if any(other != mine for other in seen):
            lines = "\n".join(f"  rank {rank}: {call}" for rank, call in enumerate(seen))
            raise RankMismatchError(
                f"ranks of group '{self.name}' disagree on collective {self._calls}:\n{lines}"
            )

    def wait_for(self, work: dist.Work | None, what: str, tensor: Tensor | None = None) -> None:
        """Wait, and tell once if that takes longer than `patience`.

        A collective of gloo can be asked again after a wait that ended early. Others wait on
        the device, and messages between two ranks (ds-zero's) end with the first wait.
        """
        if work is None:
            return
        is_here = self._is_gloo and (tensor is None or tensor.is_cpu)
        if not is_here or not isinstance(work, dist.Work):
            work.wait()
            return
        try:
            work.wait(self.patience)
        except RuntimeError:
            if not work.is_completed():
                logger.warning(
                    "rank %d of %d in group '%s' has waited %g s in %s, where another rank has not "
                    "come yet. All ranks must make the same collectives in the same order; look "
                    "for an `if rank == 0` around a call that all must make. The wait goes on to "
                    "its timeout.",
                    self.rank, self.world_size, self.name, self.patience.total_seconds(), what,
                )  # fmt: skip
            work.wait()  # raises what failed; work that ended at this very moment may be well

    def _guard(self, op: str, label: str, call: Callable[[str], Any]) -> Any:
        self._calls += 1
        start = time.perf_counter()
        try:
            return call(_named(op, self._calls, label))
        except RuntimeError as error:
            raise self.explain(error, op, label, self._calls, start) from error

    def explain(
        self, error: RuntimeError, op: str, label: str, call: int, start: float
    ) -> CollectiveTimeout:
        """Turn a failed collective into an error that tells who waits where."""
        what = _named(op, call, label)
        waited = time.perf_counter() - start
        others = self._report_waiting(what)
        return CollectiveTimeout(
            f"rank {self.rank} of {self.world_size} in group '{self.name}' gave up on {what} after "
            f"{waited:.1f} s.\n{others}\nEvery rank must make the same collectives in the same "
            f"order; look for a branch, an error or an early exit that only some ranks took. "
            f"Cause: {error}"
        )

    def _report_waiting(self, what: str) -> str:
        """Post where this rank waits, and tell where the others do."""
        store = dist.distributed_c10d._get_default_store()
        place = f"ds_core/waiting/{self.name}/{self.global_rank(0)}"  # groups may share a name
        keys = [f"{place}/{rank}" for rank in range(self.world_size)]
        lines, silent = [], []
        try:
            store.set(keys[self.rank], what)
            deadline = time.monotonic() + 1.5
            while not store.check(keys) and time.monotonic() < deadline:
                time.sleep(0.05)
            for rank, key in enumerate(keys):
                if store.check([key]):
                    lines.append(f"  rank {rank}: waits in {store.get(key).decode()}")
                else:
                    silent.append(str(rank))
        except (RuntimeError, ConnectionError) as error:
            return f"  (the other ranks cannot be asked: {error})"
        if silent:
            who = "rank " if len(silent) == 1 else "ranks "
            verb = "has not arrived at any collective of this group, or is gone"
            lines.append(f"  {who}{', '.join(silent)}: {verb}")
        return "\n".join(lines)


def _named(op: str, call: int, label: str) -> str:
    return f"{op} number {call}" + (f" ({label})" if label else "")


class _Collective:
    """A collective in flight, timed for observers if there are any."""

    __slots__ = ("_call", "_comm", "_label", "_op", "_start", "_tensor", "_work")

    def __init__(
        self,
        comm: Communicator,
        op: str,
        label: str,
        work: dist.Work | None,
        tensor: Tensor | None,
        start: float,
        call: int,
    ) -> None:
        self._comm, self._op, self._label = comm, op, label
        self._work, self._tensor, self._start, self._call = work, tensor, start, call

    def done(self) -> bool:
        return self._work is None or bool(self._work.is_completed())

    def wait(self) -> None:
        work, self._work = self._work, None
        if work is None:
            return
        before = time.perf_counter()
        try:
            self._comm.wait_for(work, _named(self._op, self._call, self._label), self._tensor)
        except RuntimeError as error:
            raise self._comm.explain(
                error, self._op, self._label, self._call, self._start
            ) from error
        observers = self._comm.taps.observers
        if observers:
            now = time.perf_counter()
            size = 0 if self._tensor is None else self._tensor.nbytes
            event = CommEvent(
                op=self._op,
                nbytes=size,
                world_size=self._comm.world_size,
                group=self._comm.name,
                start=self._start,
                duration=now - self._start,
                waited=now - before,
                label=self._label,
            )
            for observer in tuple(observers):
                observer(event)
        self._tensor = None


class _Done:
    """Work that was finished before it was asked for."""

    def wait(self) -> None:
        return None

    def done(self) -> bool:
        return True


DONE: Pending = cast(Pending, _Done())
