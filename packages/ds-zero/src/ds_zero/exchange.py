"""Sums and copies of flat shares over a group, in the way its transport does best."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ds_core.comm import DONE, Communicator
from ds_core.contracts import Pending
from ds_zero.assist import Assistance, Key


class Exchange:
    """Reduce-scatter and all-gather over `comm`; both address a share by its owner's rank.

    On the CPU they are made of tagged messages between pairs of ranks: gloo's own reduce-scatter
    is an all-reduce, and a tag keeps two ranks that disagree about what comes next from taking
    each other's data for their own: they wait, and the timeout names both labels. Elsewhere the
    backend's collectives are used.

    Args:
        comm: the group.
        reduce_scatter: False sums everything on every rank and keeps the own share.
        all_gather: False broadcasts share after share.
        limit: most elements one gathering collective moves; 0 sets none.
        with_all_reduce: gather by summing shares that are zero elsewhere (on accelerators).
    """

    def __init__(
        self,
        comm: Communicator,
        *,
        reduce_scatter: bool = True,
        all_gather: bool = True,
        limit: int = 0,
        with_all_reduce: bool = False,
    ) -> None:
        self.comm = comm
        self.rank, self.world_size = comm.rank, comm.world_size
        self._scatter, self._gather = reduce_scatter, all_gather
        self._limit, self._with_all_reduce = limit, with_all_reduce
        self.assist: Assistance | None = None

    def reduce_scatter(self, flat: Tensor, *, label: str) -> Pending:
        """Sum `flat` (world * n elements) over ranks; own share of it holds the sum after `wait`.

        The rest of `flat` is undefined afterwards. Sums run in rank order whatever the timing.
        """
        if self.world_size == 1:
            return DONE
        if not self._scatter:
            return self.comm.all_reduce(flat, label=label, async_op=True)
        if flat.device.type == "cpu":
            work = self.comm.run(
                "reduce_scatter", lambda: self._send_sums(flat, label), flat, label, True
            )
            return work if self.assist is None else self.assist.watch(work)
        own = flat.view(self.world_size, -1)[self.rank]
        return self.comm.reduce_scatter(own, flat, label=label, async_op=True)

    def all_gather(self, flat: Tensor, *, label: str, key: Key = ()) -> Pending:
        """Fill `flat` (world * n elements), of which each rank has filled its own share.

        A gather with a `key` can be helped with (see `Assistance`), and is made of messages on
        the CPU whatever the settings.
        """
        if self.world_size == 1:
            return DONE
        shares = flat.view(self.world_size, -1)
        if key and flat.device.type == "cpu":
            if self.assist is not None:
                return self.assist.launch(key, lambda: self.copies(shares, label))
            return self.copies(shares, label)
        if self._with_all_reduce:
            shares[: self.rank].zero_()
            shares[self.rank + 1 :].zero_()
            return self.comm.all_reduce(flat, label=label, async_op=True)
        if not self._gather or (self._limit and flat.numel() > self._limit):
            return self._broadcasts(shares, label)
        if flat.device.type == "cpu":
            return self.copies(shares, label)
        return self.comm.all_gather(flat, shares[self.rank].clone(), label=label, async_op=True)

    def end_assistance(self, label: str) -> None:
        """Wait until all ranks are here, helping those that are not; then nobody helps any more.

        Afterwards all ranks make the same gathers: a rank that is late is waited for, and no rank
        has left while another still counts on its help.
        """
        if self.assist is None:
            return
        presence = torch.zeros(self.world_size, 1)
        self.assist.watch(self.copies(presence, label)).wait()
        self.assist.close()
        self.assist = None

    def copies(self, shares: Tensor, label: str) -> Pending:
        """Start sending the own row of `shares` to all, and receiving the others."""
        return self.comm.run(
            "all_gather", lambda: self._send_copies(shares, label), shares, label, True
        )

    def _send_sums(self, flat: Tensor, label: str) -> dist.Work:
        shares = flat.view(self.world_size, -1)
        received = torch.empty_like(shares)
        works = []
        for peer, tag in self._peers(label):
            works.append(_recv(received[peer], self.comm, peer, tag))
            works.append(_send(shares[peer], self.comm, peer, tag))
        return _Sum(works, shares[self.rank], received, self.rank)  # type: ignore[return-value]

    def _send_copies(self, shares: Tensor, label: str) -> dist.Work:
        works = []
        for peer, tag in self._peers(label):
            works.append(_recv(shares[peer], self.comm, peer, tag))
            works.append(_send(shares[self.rank], self.comm, peer, tag))
        return _All(works)  # type: ignore[return-value]

    def _broadcasts(self, shares: Tensor, label: str) -> Pending:
        step = shares.shape[1]
        if self._limit:
            step = max(1, min(step, self._limit // self.world_size))
        pending = [
            self.comm.broadcast(part, owner, label=label, async_op=True)
            for owner, share in enumerate(shares)
            for part in torch.split(share, step)
        ]
        return Together(pending)

    def _peers(self, label: str) -> list[tuple[int, int]]:
        """The other ranks, nearest first so that no rank is everybody's first, with a tag."""
        tag = zlib.crc32(label.encode()) & 0x3FFFFFFF
        ranks = range(1, self.world_size)
        return [((self.rank + step) % self.world_size, tag) for step in ranks]


class Together:
    """Several pieces of work as one."""

    def __init__(self, works: Sequence[Pending]) -> None:
        self._works = list(works)

    def wait(self) -> None:
        for work in self._works:
            work.wait()

    def done(self) -> bool:
        return all(work.done() for work in self._works)


class _All:
    """Messages in flight, with the interface of `dist.Work` that `Communicator` uses."""

    def __init__(self, works: list[dist.Work]) -> None:
        self._works = works

    def wait(self) -> bool:
        for work in self._works:
            work.wait()
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)


class _Sum(_All):
    """Messages in flight whose contents are then added, rank after rank."""

    def __init__(self, works: list[dist.Work], own: Tensor, received: Tensor, rank: int) -> None:
        super().__init__(works)
        self._own, self._received, self._rank = own, received, rank

    def wait(self) -> bool:
        super().wait()
        if len(self._received) == 2:
            self._own.add_(self._received[1 - self._rank])
            return True
        self._received[self._rank] = self._own
        torch.sum(self._received, dim=0, out=self._own)
        return True


def _send(tensor: Tensor, comm: Communicator, peer: int, tag: int) -> dist.Work:
    work = dist.isend(tensor, comm.global_rank(peer), group=comm.group, tag=tag)
    assert work is not None
    return work


def _recv(tensor: Tensor, comm: Communicator, peer: int, tag: int) -> dist.Work:
    work = dist.irecv(tensor, comm.global_rank(peer), group=comm.group, tag=tag)
    assert work is not None
    return work
