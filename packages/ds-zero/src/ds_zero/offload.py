"""Masters, moments and weights that lie in a tensor store between steps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ds_core.contracts import WEIGHT as MASTER
from ds_core.contracts import Pending, TensorStore
from ds_zero.memory import PAGE, aligned, give_back
from ds_zero.params import Shard
from ds_zero.segments import InMemory, Part, Residence, Segment
from ds_zero.units import Unit


@dataclass(eq=False)
class _Stored:
    """What is known of one segment."""

    slots: dict[str, torch.dtype] = field(default_factory=dict)
    buffers: dict[str, Tensor] = field(default_factory=dict)
    reads: list[Pending] = field(default_factory=list)
    writes: list[tuple[Pending, Tensor]] = field(default_factory=list)
    depth: int = 0


class Swapped:
    """The residence of masters and moments in a `TensorStore`.

    A segment's values are read while the one before it steps, and written while the one after it
    does; memory holds three segments at most. Buffers have the size of the largest segment.

    Args:
        store: this object closes it.
        read_ahead: read the next segment early.
        write_behind: do not wait for writes before the next segment steps.
    """

    def __init__(
        self, store: TensorStore, *, read_ahead: bool = True, write_behind: bool = True
    ) -> None:
        self._store, self._read_ahead, self._write_behind = store, read_ahead, write_behind
        self._stored: dict[Segment, _Stored] = {}
        self._free: list[Tensor] = []
        self._pending: list[_Stored] = []
        self._optimizer: torch.optim.Optimizer | None = None

    def admit(self, segment: Segment) -> None:
        if segment.numel:
            stored = self._stored.setdefault(segment, _Stored())
            stored.slots = {MASTER: segment.master.dtype}
            self._store.write(f"{segment.key}.{MASTER}", segment.master).wait()
            segment.master = torch.empty(0, dtype=segment.master.dtype)

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def prefetch(self, segment: Segment) -> None:
        if self._read_ahead:
            self._start_reading(segment)

    def enter(self, segment: Segment) -> None:
        stored = self._stored.get(segment)
        if stored is None:
            return
        stored.depth += 1
        if stored.depth > 1 or not self._is_out(segment):
            return
        self._start_reading(segment)
        for read in stored.reads:
            read.wait()
        stored.reads.clear()
        self._bind(segment, stored)

    def leave(self, segment: Segment, *, changed: bool) -> None:
        stored = self._stored.get(segment)
        if stored is None:
            return
        stored.depth = max(0, stored.depth - 1)
        if stored.depth:
            return
        self._reap()
        values = self._collect(segment, stored)
        for slot, value in values.items():
            if changed:
                work = self._store.write(f"{segment.key}.{slot}", value)
                stored.writes.append((work, value))
            else:
                self._give_back(value)
        del values
        self._unbind(segment)
        give_back()
        self._pending.append(stored)
        if not self._write_behind or len(self._pending) > 2:
            self.drain()

    def drain(self) -> None:
        for stored in self._pending:
            for work, value in stored.writes:
                work.wait()
                self._give_back(value)
            stored.writes.clear()
        self._pending.clear()

    def close(self) -> None:
        self.drain()
        self._free.clear()
        self._stored.clear()
        self._store.close()

    def _is_out(self, segment: Segment) -> bool:
        return segment.numel > 0 and segment.master.numel() == 0

    def _start_reading(self, segment: Segment) -> None:
        stored = self._stored.get(segment)
        if stored is None or stored.buffers or not self._is_out(segment):
            return
        for work, value in stored.writes:
            work.wait()
            self._give_back(value)
        stored.writes.clear()
        for slot, dtype in stored.slots.items():
            buffer = self._take(segment.numel, dtype)
            stored.reads.append(self._store.read(f"{segment.key}.{slot}", buffer))
            stored.buffers[slot] = buffer

    def _bind(self, segment: Segment, stored: _Stored) -> None:
        buffers, stored.buffers = stored.buffers, {}
        segment.master = buffers[MASTER]
        for part in segment.parts:
            part.param.data = segment.master[part.begin : part.end]
            state = self._state(part)
            for slot in buffers.keys() & state.keys():
                state[slot] = buffers[slot][part.begin : part.end]

    def _collect(self, segment: Segment, stored: _Stored) -> dict[str, Tensor]:
        """Everything of the segment that goes to the store, a flat tensor a slot."""
        values = {MASTER: segment.master}
        slots: dict[str, list[tuple[int, int, Tensor]]] = {}
        for part in segment.parts:
            for slot, value in self._state(part).items():
                if torch.is_tensor(value) and value.dim() == 1 and value.numel():
                    slots.setdefault(slot, []).append((part.begin, part.end, value))
        for slot, runs in slots.items():
            values[slot] = self._joined(segment, runs)
        stored.slots = {slot: value.dtype for slot, value in values.items()}
        return values

    def _joined(self, segment: Segment, runs: list[tuple[int, int, Tensor]]) -> Tensor:
        begin, _, first = runs[0]
        whole = segment.numel
        storage = first.untyped_storage().data_ptr()
        if all(
            run.untyped_storage().data_ptr() == storage
            and run.storage_offset() - start == first.storage_offset() - begin
            for start, _, run in runs
        ):
            offset = first.storage_offset() - begin
            if offset >= 0 and (offset + whole) * first.element_size() <= (
                first.untyped_storage().nbytes()
            ):
                return first.detach().as_strided((whole,), (1,), offset)
        joined = self._take(whole, first.dtype).zero_()
        for start, end, run in runs:
            joined[start:end] = run
        return joined

    def _unbind(self, segment: Segment) -> None:
        empty = torch.empty(0, dtype=segment.master.dtype)
        segment.master = empty
        for part in segment.parts:
            part.param.data = empty
            state = self._state(part)
            for slot, value in state.items():
                if torch.is_tensor(value) and value.dim() == 1:
                    state[slot] = torch.empty(0, dtype=value.dtype)

    def _state(self, part: Part) -> dict[str, Any]:
        assert self._optimizer is not None
        found: dict[str, Any] = self._optimizer.state.get(part.param, {})
        return found

    def _reap(self) -> None:
        for stored in list(self._pending):
            if all(work.done() for work, _ in stored.writes):
                for work, value in stored.writes:
                    work.wait()
                    self._give_back(value)
                stored.writes.clear()
                self._pending.remove(stored)

    def _take(self, numel: int, dtype: torch.dtype) -> Tensor:
        nbytes = numel * dtype.itemsize
        for index, block in enumerate(self._free):
            if nbytes <= block.numel() < 2 * nbytes + PAGE:
                return self._free.pop(index)[:nbytes].view(dtype)
        return aligned(numel, dtype)

    def _give_back(self, value: Tensor) -> None:
        if len(self._free) < 8 and value.data_ptr() % PAGE == 0:
            self._free.append(value.detach().view(torch.uint8))


class SwappedWeights:
    """Keeps the weights of some units in a store too; wraps the residence of the masters.

    Memory of a unit's weights exists only while its shares are being written.
    """

    def __init__(self, store: TensorStore, inner: Residence | None = None) -> None:
        self._store = store
        self.inner: Residence = inner or InMemory()
        self._users: Counter[Unit] = Counter()
        self.units: set[Unit] = set()

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

    def enter(self, segment: Segment) -> None:
        self._bring_in(segment.unit)
        self.inner.enter(segment)

    def leave(self, segment: Segment, *, changed: bool) -> None:
        self.inner.leave(segment, changed=changed)
        unit = segment.unit
        if unit not in self.units:
            return
        self._users[unit] -= 1
        if changed:
            self._store.write(self._key(unit), unit.weights).wait()
        if self._users[unit] <= 0:
            unit.weights.untyped_storage().resize_(0)

    def drain(self) -> None:
        self.inner.drain()

    def close(self) -> None:
        self.inner.close()
        self._store.close()

    def bring_back(self) -> None:
        """Put all weights into memory for good."""
        for unit in self.units:
            self._bring_in(unit)
        self.units = set()

    def _bring_in(self, unit: Unit) -> None:
        if unit not in self.units:
            return
        self._users[unit] += 1
        if self._users[unit] == 1:
            storage = unit.weights.untyped_storage()
            storage.resize_(unit.share * unit.dtype.itemsize)
            self._store.read(self._key(unit), unit.weights).wait()

    def _key(self, unit: Unit) -> str:
        return f"weights{unit.index}"


class _Read:
    """Reads one share from the store."""

    def __init__(self, store: TensorStore, key: str, offset: int) -> None:
        self._store, self._key, self._offset = store, key, offset

    def __call__(self, target: Tensor) -> Pending:
        return self._store.read(self._key, target, self._offset)
