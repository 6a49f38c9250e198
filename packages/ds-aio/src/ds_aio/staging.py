"""Device tensors, copied through host buffers while earlier pieces are on their way."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any, TypeGuard

import torch
from torch import Tensor

from ds_aio.buffers import BufferLike, as_bytes
from ds_aio.errors import AioError, UnfitBuffer
from ds_aio.memory import StagingPool
from ds_aio.transfer import Transfer

# Starts the transfer of one host buffer at a file offset.
BeginBlock = Callable[[Tensor, int], Transfer]


def is_on_device(buffer: BufferLike) -> TypeGuard[Tensor]:
    """True for a tensor outside of host memory."""
    return isinstance(buffer, Tensor) and buffer.device.type not in ("cpu", "meta")


class StagedTransfer:
    """A transfer of a device tensor under way in a thread of its own.

    Same use as `Transfer`. What the device was still computing into the tensor when the transfer
    was made is waited for; what a read brings is on the device once the transfer is done.
    """

    def __init__(
        self, tensor: Tensor, pool: StagingPool, begin: BeginBlock, offset: int, *, write: bool
    ) -> None:
        if not tensor.is_contiguous():
            raise UnfitBuffer(
                f"a tensor of shape {tuple(tensor.shape)} is not contiguous: use .contiguous()"
            )
        self._bytes = as_bytes(tensor)
        self._pool = pool
        self._begin = begin
        self._offset = offset
        self._ready = _mark(tensor.device)
        self._error: BaseException | None = None
        self.waited = False
        self._thread = threading.Thread(target=self._run, args=(write,), name="ds_aio staging")
        self._thread.start()

    def done(self) -> bool:
        """True once `wait` would not block."""
        return not self._thread.is_alive()

    def succeeded(self) -> bool:
        """True once done without an error."""
        return self.done() and self._error is None

    def settle(self) -> None:
        """Blocks until done, whatever the outcome; `wait` still raises its error."""
        self._thread.join()

    def wait(self) -> None:
        """Blocks until done; raises the error of the work; may be called again."""
        self._thread.join()
        self.waited = True
        if self._error is not None:
            raise self._error

    def result(self) -> int:
        """Waits; the number of bytes moved."""
        self.wait()
        return self._bytes.numel()

    def __await__(self) -> Generator[Any, None, int]:
        yield from asyncio.to_thread(self._thread.join).__await__()
        return self.result()

    def _run(self, write: bool) -> None:
        try:
            # In turn: two at once could each wait for the buffers of the other.
            with self._pool.turn:
                device = self._bytes.device
                if self._ready is not None:
                    torch.accelerator.current_stream(device).wait_event(self._ready)
                (self._write if write else self._read)()
                if self._ready is not None:
                    torch.accelerator.synchronize(device)
        except BaseException as error:  # handed to whoever waits
            self._error = error

    def _blocks(self) -> list[tuple[int, int]]:
        total, step = self._bytes.numel(), self._pool.nbytes
        return [(start, min(step, total - start)) for start in range(0, max(total, 1), step)]

    def _write(self) -> None:
        flying: deque[tuple[Tensor, Transfer]] = deque()
        try:
            for start, length in self._blocks():
                self._launch(flying, start, length, fill=True)
            while flying:
                self._land(flying)
        finally:
            self._abandon(flying)

    def _read(self) -> None:
        flying: deque[tuple[Tensor, Transfer]] = deque()
        landing = deque(self._blocks())
        try:
            for start, length in self._blocks():
                while len(flying) >= self._pool.count:
                    self._land(flying, landing.popleft())
                self._launch(flying, start, length, fill=False)
            while flying:
                self._land(flying, landing.popleft())
        finally:
            self._abandon(flying)

    def _launch(
        self, flying: deque[tuple[Tensor, Transfer]], start: int, length: int, *, fill: bool
    ) -> None:
        buffer = self._pool.take()
        try:
            if fill:
                buffer[:length].copy_(self._bytes[start : start + length])
            transfer = self._begin(buffer[:length], self._offset + start)
        except BaseException:
            self._pool.give_back(buffer)
            raise
        flying.append((buffer, transfer))
        if fill and len(flying) == self._pool.count:
            self._land(flying)

    def _land(
        self, flying: deque[tuple[Tensor, Transfer]], place: tuple[int, int] | None = None
    ) -> None:
        buffer, transfer = flying.popleft()
        try:
            transfer.wait()
            if place is not None:
                start, length = place
                self._bytes[start : start + length].copy_(buffer[:length])
        finally:
            self._pool.give_back(buffer)

    def _abandon(self, flying: deque[tuple[Tensor, Transfer]]) -> None:
        # Only after an error, which is already on its way; the buffers must still come back.
        for buffer, transfer in flying:
            with contextlib.suppress(AioError):
                transfer.wait()
            self._pool.give_back(buffer)


def _mark(device: torch.device) -> torch.Event | None:
    if device.type == "cpu":
        return None
    return torch.accelerator.current_stream(device).record_event()
