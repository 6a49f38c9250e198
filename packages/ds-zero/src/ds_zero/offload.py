"""Masters and moments that lie in a tensor store between steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ds_core.contracts import WEIGHT as MASTER
from ds_core.contracts import Pending, TensorStore
from ds_zero.memory import Buffers, give_back
from ds_zero.segments import Part, Segment


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

    A segment's values are read while the one before it steps, and written while those after it
    do. Buffers have the size of the largest segment.

    Args:
        store: this object closes it.
        read_ahead: read the next segment early.
        write_behind: do not wait for writes before the next segment steps.
        count: most segments in memory at a time: one read, one stepped, others being written.
            With 1 each is read, stepped and written before the next.
        fast_init: write the first masters side by side, up to `count`, not one after the other.
    """

    def __init__(
        self,
        store: TensorStore,
        *,
        read_ahead: bool = True,
        write_behind: bool = True,
        count: int = 4,
        fast_init: bool = False,
    ) -> None:
        self._store, self._read_ahead, self._write_behind = store, read_ahead, write_behind
        self._count, self._fast_init = max(count, 1), fast_init
        self._stored: dict[Segment, _Stored] = {}
        self._buffers = Buffers()
        self._inside: set[_Stored] = set()
        self._pending: list[_Stored] = []
        self._optimizer: torch.optim.Optimizer | None = None

    def admit(self, segment: Segment) -> None:
        if not segment.numel:
            return
        stored = self._stored.setdefault(segment, _Stored())
        stored.slots = {MASTER: segment.master.dtype}
        work = self._store.write(f"{segment.key}.{MASTER}", segment.master)
        stored.writes.append((work, segment.master))
        self._inside.add(stored)
        self._pending.append(stored)
        segment.master = torch.empty(0, dtype=segment.master.dtype)
        self._make_room(self._count if self._fast_init else 1)

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.drain()

    def prefetch(self, segment: Segment) -> None:
        self._reap()
        if self._read_ahead and len(self._inside) < self._count:
            self._start_reading(segment)

    def enter(self, segment: Segment) -> None:
        stored = self._stored.get(segment)
        if stored is None:
            return
        stored.depth += 1
        if stored.depth > 1 or not self._is_out(segment):
            return
        if stored not in self._inside:
            self._make_room(self._count)
        self._start_reading(segment)
        try:
            for read in stored.reads:
                read.wait()
        except BaseException:
            stored.depth -= 1  # what fails, fails again at the next use
            raise
        stored.reads.clear()
        self._bind(segment, stored)

    def leave(self, segment: Segment, *, changed: bool) -> None:
        stored = self._stored.get(segment)
        if stored is None:
            return
        stored.depth = max(0, stored.depth - 1)
        if stored.depth:
            return
        values = self._collect(segment, stored)
        for slot, value in values.items():
            if changed:
                work = self._store.write(f"{segment.key}.{slot}", value)
                stored.writes.append((work, value))
            else:
                self._buffers.put_back(value)
        del values
        self._unbind(segment)
        give_back()
        self._pending.append(stored)
        if not self._write_behind:
            self.drain()

    def drain(self) -> None:
        while self._pending:
            self._finish(self._pending[0])

    def close(self) -> None:
        try:
            self.drain()
        finally:
            self._buffers.clear()
            self._stored.clear()
            self._store.close()

    def _is_out(self, segment: Segment) -> bool:
        return segment.numel > 0 and segment.master.numel() == 0

    def _start_reading(self, segment: Segment) -> None:
        stored = self._stored.get(segment)
        if stored is None or stored.buffers or not self._is_out(segment):
            return
        self._finish(stored)
        self._inside.add(stored)
        for slot, dtype in stored.slots.items():
            buffer = self._buffers.take(segment.numel, dtype)
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
        joined = self._buffers.take(whole, first.dtype).zero_()
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

    def _make_room(self, count: int) -> None:
        """Wait for writes until there is room for one more segment, of `count`."""
        self._reap()
        while self._pending and len(self._inside) >= count:
            self._finish(self._pending[0])

    def _reap(self) -> None:
        for stored in list(self._pending):
            if all(work.done() for work, _ in stored.writes):
                self._finish(stored)

    def _finish(self, stored: _Stored) -> None:
        """Wait for what is written of a segment; its memory is free then."""
        for work, value in stored.writes:
            work.wait()
            self._buffers.put_back(value)
        stored.writes.clear()
        if stored in self._pending:
            self._pending.remove(stored)
            self._inside.discard(stored)
