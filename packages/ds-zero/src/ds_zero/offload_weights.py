"""Weights that lie in a tensor store between uses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ds_core.contracts import Pending, TensorStore
from ds_zero.memory import Buffers
from ds_zero.params import Shard
from ds_zero.segments import InMemory, Residence, Segment
from ds_zero.units import Unit


@dataclass(eq=False)
class _Piece:
    """A segment's weights in memory."""

    buffer: Tensor
    read: Pending
    depth: int = 0
    changed: bool = False
    write: Pending | None = None


class SwappedWeights:
    """Keeps the weights of some units in a store too; wraps the residence of the masters.

    A gather reads a share straight to its place. A step has the weights of a segment in memory
    only while it writes them.

    Args:
        store: this object closes it.
        inner: the residence of masters and moments.
        count: most segments whose weights are in memory at a time: one read, one stepped, others
            being written.
    """

    def __init__(
        self, store: TensorStore, inner: Residence | None = None, *, count: int = 5
    ) -> None:
        self._store, self._count = store, max(count, 1)
        self.inner: Residence = inner or InMemory()
        self.units: set[Unit] = set()
        self._pieces: dict[Segment, _Piece] = {}
        self._buffers = Buffers()

    def take(self, unit: Unit, shards: list[tuple[int, Shard]]) -> None:
        """Move the unit's weights to the store; `shards` are its parameters by offset."""
        key = self._key(unit)
        self._store.write(key, unit.weights).wait()
        self.units.add(unit)
        for offset, shard in shards:
            shard.fetch_local = _Read(self._store, key, offset * unit.dtype.itemsize)
        unit.weights.untyped_storage().resize_(0)

    def admit(self, segment: Segment) -> None:
        self.inner.admit(segment)

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        self.inner.begin(optimizer)

    def prefetch(self, segment: Segment) -> None:
        self.inner.prefetch(segment)
        self._reap()
        if len(self._pieces) < self._count:
            self._start_reading(segment)

    def enter(self, segment: Segment) -> None:
        self._bring_in(segment)
        try:
            self.inner.enter(segment)
        except BaseException:
            self._let_out(segment)
            raise

    def leave(self, segment: Segment, *, changed: bool) -> None:
        self.inner.leave(segment, changed=changed)
        if segment in self._pieces:
            self._pieces[segment].changed |= changed
        piece = self._let_out(segment)
        if piece is None:
            return
        if piece.changed:
            offset = segment.begin * segment.unit.dtype.itemsize
            piece.write = self._store.write(self._key(segment.unit), piece.buffer, offset)
        else:
            self._drop(segment)

    def drain(self) -> None:
        for segment, piece in list(self._pieces.items()):
            if not piece.depth:
                self._drop(segment)
        self.inner.drain()

    def close(self) -> None:
        try:
            self.drain()
        finally:
            self._buffers.clear()
            self._store.close()
            self.inner.close()

    def bring_back(self) -> None:
        """Put all weights into memory for good."""
        self.drain()
        for unit in self.units:
            unit.weights.untyped_storage().resize_(unit.share * unit.dtype.itemsize)
            self._store.read(self._key(unit), unit.weights).wait()
        self.units = set()

    def _bring_in(self, segment: Segment) -> None:
        piece = self._pieces.get(segment)
        if piece is not None and piece.write is not None:
            self._drop(segment)
            piece = None
        if piece is None:
            self._make_room()
            self._start_reading(segment)
            piece = self._pieces.get(segment)
        if piece is None:
            return
        if not piece.depth:
            piece.read.wait()
            segment.weights = piece.buffer
        piece.depth += 1

    def _let_out(self, segment: Segment) -> _Piece | None:
        """The opposite of `_bring_in`; the piece, if nobody uses it any more."""
        piece = self._pieces.get(segment)
        if piece is None:
            return None
        piece.depth -= 1
        if piece.depth:
            return None
        segment.weights = segment.weights[:0].clone()
        return piece

    def _start_reading(self, segment: Segment) -> None:
        unit = segment.unit
        if unit not in self.units or segment in self._pieces or not segment.numel:
            return
        buffer = self._buffers.take(segment.numel, unit.dtype)
        read = self._store.read(self._key(unit), buffer, segment.begin * unit.dtype.itemsize)
        self._pieces[segment] = _Piece(buffer, read)

    def _make_room(self) -> None:
        """Wait for writes, the oldest first, until there is room for one more segment."""
        self._reap()
        for segment, piece in list(self._pieces.items()):
            if len(self._pieces) < self._count:
                return
            if piece.write is not None:
                self._drop(segment)

    def _reap(self) -> None:
        for segment, piece in list(self._pieces.items()):
            if piece.write is not None and piece.write.done():
                self._drop(segment)

    def _drop(self, segment: Segment) -> None:
        """Let go of a segment's weights, once they are written (or read)."""
        piece = self._pieces[segment]
        (piece.read if piece.write is None else piece.write).wait()  # what fails, fails again
        del self._pieces[segment]
        self._buffers.put_back(piece.buffer)

    def _key(self, unit: Unit) -> str:
        return f"weights{unit.index}"


class _Read:
    """Reads one share from the store."""

    def __init__(self, store: TensorStore, key: str, offset: int) -> None:
        self._store, self._key, self._offset = store, key, offset

    def __call__(self, target: Tensor) -> Pending:
        return self._store.read(self._key, target, self._offset)
