"""Room for messages that two processes of one machine share.

Through a socket a message is copied twice by the kernel, piece by piece, by threads that need a
core while both stages compute. In shared memory the sender writes it once and the receiver reads it
once; only a notice of some bytes is sent, see `ds_pipeline.notices`.

The memory is anonymous (`memfd_create`): it has no name that could be left behind, counts for the
processes that use it, and is gone when both are.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ds_core.comm import Communicator

ALIGN = 64
PAGE = mmap.PAGESIZE

PATIENCE = 10.0
"""Seconds for a receiver to open new memory before its sender goes on to what may be its end."""

Ticket = tuple[int, int, int]
"""Where a message lies: file descriptor of the owner, bytes of a slot, slot."""


class Region:
    """Slots of equal size, and before them for each the number of messages taken out of it.

    The sender writes slots, the receiver counts; both are aligned words that one side writes.
    """

    def __init__(self, fd: int, slots: int, slot_size: int) -> None:
        self.slot_size = slot_size
        self._first = -(-slots * ALIGN // PAGE) * PAGE
        self._map = mmap.mmap(fd, self._first + slots * slot_size)
        self._taken = memoryview(self._map).cast("q")
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)

    @classmethod
    def size(cls, slots: int, slot_size: int) -> int:
        """Bytes of a region."""
        return -(-slots * ALIGN // PAGE) * PAGE + slots * slot_size

    def slot(self, number: int) -> Tensor:
        """The bytes of a slot, shared."""
        begin = self._first + number * self.slot_size
        return self._bytes[begin : begin + self.slot_size]

    def taken(self, number: int) -> int:
        """How many messages have been taken out of a slot."""
        return self._taken[number * ALIGN // 8]

    def take(self, number: int) -> None:
        """Count one more message as taken; its slot may be written again from now on."""
        self._taken[number * ALIGN // 8] += 1


class Outbox:
    """The sender's side: regions that grow with the largest message.

    Args:
        slots: messages that may lie in it at once.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._files: list[int] = []
        self._region: Region | None = None
        self._sent = [0] * slots
        self._limit: float = float("inf")

    def place(self, size: int) -> tuple[Ticket, Tensor] | None:
        """Room for a message of `size` bytes, or None if all slots are full or memory is short."""
        if self._region is None or self._region.slot_size < size:
            self._grow(size)
        region = self._region
        if region is None or region.slot_size < size:
            return None
        for number in range(self._slots):
            if region.taken(number) == self._sent[number]:
                self._sent[number] += 1
                ticket = (self._files[-1], region.slot_size, number)
                return ticket, region.slot(number)[:size]
        return None

    def wait_until_found(self) -> None:
        """Wait for the receiver to open the memory, which it can't after this process has ended."""
        deadline = time.monotonic() + PATIENCE
        while not self._found() and time.monotonic() < deadline:
            time.sleep(0.001)

    def close(self) -> None:
        """Let go of the memory; what the receiver has seen of it stays with the receiver."""
        self._region = None
        while self._files:
            os.close(self._files.pop())

    def _found(self) -> bool:
        region = self._region
        return region is None or not any(self._sent) or any(map(region.taken, range(self._slots)))

    def _grow(self, size: int) -> None:
        """A region of the next power of two; earlier ones stay open for messages under way."""
        if size >= self._limit:
            return
        slot_size = max(PAGE, 1 << (size - 1).bit_length())
        try:
            fd = os.memfd_create("ds_pipeline", os.MFD_CLOEXEC)
        except OSError:  # no file descriptor to be had
            self._limit = size
            return
        try:
            os.posix_fallocate(fd, 0, Region.size(self._slots, slot_size))
            self._region = Region(fd, self._slots, slot_size)
        except OSError:  # no memory to be had: such messages go through the process group
            self._limit = size
            os.close(fd)
            return
        self._files.append(fd)
        self._sent = [0] * self._slots


class Inbox:
    """The receiver's side: sees the regions of one process.

    Args:
        process: of the sender.
        slots: as the sender has.
    """

    def __init__(self, process: int, slots: int) -> None:
        self._process, self._slots = process, slots
        self._regions: dict[int, Region] = {}

    def take(self, ticket: Ticket, size: int) -> Tensor:
        """A message of `size` bytes, copied out of its slot."""
        file, slot_size, number = ticket
        if file not in self._regions:
            fd = _open(self._process, file)
            self._regions = {file: Region(fd, self._slots, slot_size)}
            os.close(fd)
        region = self._regions[file]
        message = torch.empty(size, dtype=torch.uint8)
        message.copy_(region.slot(number)[:size])
        region.take(number)
        return message


def _open(process: int, file: int) -> int:
    return os.open(f"/proc/{process}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)


def sharing_processes(comm: Communicator, *, willing: bool = True) -> list[int | None]:
    """By rank, the process whose memory this one can share, or None; all ranks call this.

    Two willing ranks share if each can open what the other one offers, which takes Linux, one
    machine, one user and one space of process numbers.
    """
    offer = _Offer(willing and hasattr(os, "memfd_create") and Path("/proc/self/fd").exists())
    try:
        offers: list[Any] = comm.all_gather_object(offer.facts())
        seen = [facts is not None and offer.sees(*facts) for facts in offers]
        everyone: list[list[bool]] = comm.all_gather_object(seen)
    finally:
        offer.close()
    me = comm.rank
    return [
        facts[0] if facts is not None and seen[rank] and everyone[rank][me] else None
        for rank, facts in enumerate(offers)
    ]


class _Offer:
    """A few random bytes in shared memory, for others to find."""

    def __init__(self, possible: bool) -> None:
        self._word = os.urandom(16)
        self._fd: int | None = None
        if possible:
            with contextlib.suppress(OSError):  # a system may forbid such memory
                self._fd = os.memfd_create("ds_pipeline", os.MFD_CLOEXEC)
                os.write(self._fd, self._word)

    def facts(self) -> tuple[int, int, bytes] | None:
        return None if self._fd is None else (os.getpid(), self._fd, self._word)

    def sees(self, process: int, file: int, word: bytes) -> bool:
        """Whether the offer of another process can be opened and is the one meant."""
        if self._fd is None:
            return False
        try:
            fd = _open(process, file)
        except OSError:
            return False
        try:
            return os.pread(fd, len(word), 0) == word
        finally:
            os.close(fd)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
