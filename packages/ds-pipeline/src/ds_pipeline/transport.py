"""Moves values between neighbouring stages, in order, while both go on computing.

A message is one flat buffer. Its layout (shapes, dtypes, what needs a gradient, plain values) is
described only when it differs from the last one in the same lane, so a run with fixed shapes sends
one buffer a value and can wait for it before it is asked for. A pass opens with a word for what
comes in it, so that neighbours that do different things never meet in the middle. Between processes
of one machine the buffer lies in memory that both share, and only a notice of its place is sent.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ds_core.comm import Communicator
from ds_pipeline.errors import PipelineError
from ds_pipeline.faults import FaultBoard
from ds_pipeline.notices import Bell, Ear
from ds_pipeline.shared_memory import Inbox, Outbox, Ticket
from ds_pipeline.wire import EMPTY, WORD, Layout, Message, get_word, set_word

NOWHERE: Ticket = (0, 0, -1)
"""The place of a message that comes by itself, after its notice."""

ROOM = 1 << 32
"""The last word of a message tells lengths below it; above it stands what the message is."""

Address = tuple[str, int]
"""Lane (what kind of value, for which place) and number of the micro-batch."""


@dataclass(frozen=True)
class Neighbour:
    """The other end: its stage, and its rank in the world."""

    stage: int
    rank: int

    def __str__(self) -> str:
        return f"stage {self.stage} (rank {self.rank})"


class Outgoing:
    """Sends to one neighbour.

    Args:
        comm: the group of the pipeline.
        limit: messages that may be under way; beyond it the oldest is waited for.
        shared: memory that the neighbour shares, if it does, and the bell that it hears.
    """

    def __init__(
        self,
        comm: Communicator,
        to: Neighbour,
        faults: FaultBoard,
        *,
        limit: int,
        shared: tuple[Outbox, Bell] | None = None,
    ) -> None:
        self._comm, self._to, self._faults, self._limit = comm, to, faults, limit
        self._shared = shared
        self._lanes: dict[str, Layout] = {}
        self._spare: dict[str, list[Message]] = {}
        self._pending: deque[tuple[dist.Work, Tensor | Message, Address]] = deque()
        self._device = comm.device

    def open(self, addresses: Sequence[Address]) -> None:
        """A pass begins in which `addresses` are sent, in this order."""
        if addresses:
            self._announce(WORD, _digest(addresses), addresses[0])

    def send(self, address: Address, value: Any) -> None:
        """Start to send `value`; it may be changed once this returns."""
        lane = address[0]
        before = self._lanes.get(lane, EMPTY)
        layout, tensors = Layout.of(value, before)
        if layout is not before:
            header = bytearray(layout.encode())
            self._announce(before.size, _word(address, len(header)), address)
            self._post(torch.frombuffer(header, dtype=torch.uint8).to(self._device), address)
            self._lanes[lane], self._spare[lane] = layout, []
        if self._shared is not None and self._share(*self._shared, address, layout, tensors):
            return
        spare = self._spare.setdefault(lane, [])
        message = spare.pop() if spare else layout.message(self._device)
        set_word(message.flat, _word(address))
        self._post(message.fill(tensors), address, message)

    def _share(
        self,
        outbox: Outbox,
        bell: Bell,
        address: Address,
        layout: Layout,
        tensors: Sequence[Tensor],
    ) -> bool:
        """Send a notice of where the message lies; False if it has to follow by itself."""
        place = outbox.place(layout.size - WORD)
        ticket = NOWHERE if place is None else place[0]
        if place is not None:
            Message(layout, place[1], layout.views(place[1])).fill(tensors)
        self._ring(bell, ticket, _word(address), address)
        return place is not None

    def _announce(self, size: int, word: int, address: Address) -> None:
        """Send a word where the neighbour expects a message of `size` bytes."""
        if self._shared is not None:
            self._ring(self._shared[1], NOWHERE, word, address)
            return
        message = torch.empty(size, dtype=torch.uint8, device=self._device)
        set_word(message, word)
        self._post(message, address)

    def _ring(self, bell: Bell, ticket: Ticket, word: int, address: Address) -> None:
        try:
            bell.ring((*ticket, word))
        except OSError as error:
            raise self._lost(address, error) from error

    def settle(self, address: Address) -> None:
        """Let go of what was sent up to `address`, which is known to have arrived."""
        while any(entry[2] == address for entry in self._pending):
            self._wait_oldest()

    def drain(self) -> None:
        """Wait until everything has been sent."""
        while self._pending:
            self._wait_oldest()
        if self._shared is not None:
            self._shared[0].wait_until_found()

    def close(self) -> None:
        """Let go of the line."""
        self._pending.clear()
        for end in self._shared or ():
            end.close()

    def _post(self, tensor: Tensor, address: Address, message: Message | None = None) -> None:
        while len(self._pending) >= self._limit:
            self._wait_oldest()
        try:
            work = dist.isend(tensor, self._to.rank, group=self._comm.group)
        except RuntimeError as error:
            raise self._lost(address, error) from error
        assert work is not None
        self._pending.append((work, message or tensor, address))

    def _wait_oldest(self) -> None:
        work, sent, address = self._pending.popleft()
        try:
            work.wait()
        except RuntimeError as error:
            raise self._lost(address, error) from error
        if isinstance(sent, Message) and sent.layout is self._lanes[address[0]]:
            self._spare[address[0]].append(sent)

    def _lost(self, address: Address, error: Exception) -> PipelineError:
        return self._faults.explain(f"sending {_say(address)} to {self._to}", error)


class Incoming:
    """Receives from one neighbour; `shared` is the memory that it shares, if it does."""

    def __init__(
        self,
        comm: Communicator,
        source: Neighbour,
        faults: FaultBoard,
        device: torch.device,
        *,
        shared: tuple[Inbox, Ear] | None = None,
    ) -> None:
        self._inbox = None if shared is None else shared[0]
        self._ear = None if shared is None else shared[1]
        self._comm, self._source, self._faults = comm, source, faults
        self._device, self._wire_device = device, comm.device
        self._lanes: dict[str, Layout] = {}
        self._expected: deque[Address] = deque()
        self._opening: int | None = None
        self._posted: tuple[dist.Work, Tensor] | None = None
        self._arrived: dict[Address, Any] = {}

    def expect(self, addresses: Sequence[Address]) -> None:
        """What the neighbour is going to send in this pass, in order."""
        self._expected = deque(addresses)
        self._arrived.clear()
        if addresses:
            self._opening = _digest(addresses)
            self._post_next(WORD)

    def close(self) -> None:
        """Wait for nothing any more."""
        self._posted = None
        self._arrived.clear()
        if self._ear is not None:
            self._ear.close()

    def receive(self, address: Address) -> Any:
        """Wait for a value; tensors are leaves that require a gradient if the sent ones did."""
        while address not in self._arrived:
            if not self._expected:
                raise PipelineError(f"{self._source} does not send {_say(address)} in this pass")
            self._take_next()
        return self._arrived.pop(address)

    def _take_next(self) -> None:
        address = self._expected[0]
        lane = address[0]
        if self._opening is not None:
            word, _ = self._next(address)
            self._require_in_step(word == self._opening, address)
            self._opening = None
        word, sent = self._next(address)
        length = word - _word(address)
        self._require_in_step(0 <= length < ROOM, address)
        if length:
            header = self._now(length, address)
            self._lanes[lane] = Layout.decode(header.cpu().numpy().tobytes())
            _, sent = self._next(address)
        message = sent if isinstance(sent, Tensor) else self._found(sent, address)
        self._expected.popleft()
        self._post_next()
        self._arrived[address] = self._unpack(self._lanes[lane], message)

    def _require_in_step(self, in_step: bool, address: Address) -> None:
        if not in_step:
            raise PipelineError(
                f"{self._source} sent something else where {_say(address)} was expected: the "
                "stages are not in step (another number of micro-batches, a pass that only some "
                "stages make)"
            )

    def _next(self, address: Address) -> tuple[int, Tensor | Ticket]:
        """The last word of what comes next, and the message or where it lies."""
        if self._ear is None:
            if self._posted is None:
                self._post_next()
            message = self._wait(address)
            return get_word(message), message
        try:
            *ticket, word = self._ear.listen()
        except OSError as error:
            raise self._lost(address, error) from error
        return word, (ticket[0], ticket[1], ticket[2])

    def _found(self, ticket: Ticket, address: Address) -> Tensor:
        """The message that a notice is about."""
        size = self._lanes[address[0]].size
        if self._inbox is None or ticket == NOWHERE:
            return self._now(size, address)
        try:
            return self._inbox.take(ticket, size - WORD)
        except OSError as error:  # the sender is gone, and its memory with it
            raise self._lost(address, error) from error

    def _unpack(self, layout: Layout, message: Tensor) -> Any:
        if message.device != self._device:
            message = message.to(self._device)
        # `data` counts changes by itself: one tensor may be changed in place without the others
        tensors = [view.data for view in layout.views(message)]
        for tensor, (_, _, needs_grad) in zip(tensors, layout.tensors, strict=True):
            if needs_grad:
                tensor.requires_grad_()
        return layout.value(tensors)

    def _post_next(self, size: int = 0) -> None:
        """Be ready for what comes next, of `size` bytes or as the last one in its lane."""
        if self._expected and self._ear is None:
            address = self._expected[0]
            size = size or self._lanes.get(address[0], EMPTY).size
            self._posted = self._post(size, address)

    def _post(self, size: int, address: Address) -> tuple[dist.Work, Tensor]:
        buffer = torch.empty(size, dtype=torch.uint8, device=self._wire_device)
        try:
            work = dist.irecv(buffer, self._source.rank, group=self._comm.group)
        except RuntimeError as error:
            raise self._lost(address, error) from error
        assert work is not None
        return work, buffer

    def _now(self, size: int, address: Address) -> Tensor:
        self._posted = self._post(size, address)
        return self._wait(address)

    def _wait(self, address: Address) -> Tensor:
        assert self._posted is not None
        (work, buffer), self._posted = self._posted, None
        try:
            work.wait()
        except RuntimeError as error:
            raise self._lost(address, error) from error
        return buffer

    def _lost(self, address: Address, error: Exception) -> PipelineError:
        return self._faults.explain(f"receiving {_say(address)} from {self._source}", error)


def _word(address: Address, length: int = 0) -> int:
    """The last word of the first message about `address`."""
    return (zlib.crc32(repr(address).encode()) >> 1) * ROOM + length


def _digest(addresses: Sequence[Address]) -> int:
    """Says what a pass consists of."""
    return zlib.crc32(repr(list(addresses)).encode())


def _say(address: Address) -> str:
    lane, micro_batch = address
    return f"{lane.partition('/')[0]} of micro-batch {micro_batch}"
