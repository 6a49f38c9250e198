"""Host memory made for I/O: page-aligned, locked in RAM where the limits allow it."""

from __future__ import annotations

import math
import os
import resource
import threading
import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ds_aio.engine import load_native


def aligned_tensor(
    shape: Sequence[int],
    dtype: torch.dtype = torch.uint8,
    *,
    lock: bool = False,
    phase: int = 0,
    on_note: Callable[[str], None] | None = None,
) -> Tensor:
    """A new uninitialised tensor outside of torch's allocator.

    Its memory begins `phase` bytes after a page boundary and is given back with the last tensor
    that shares it. With `lock` it is locked in RAM, and known to CUDA where there is one, so that
    device copies need no staging. Over RLIMIT_MEMLOCK it stays unlocked and `on_note` is told.
    """
    count = math.prod(shape)
    nbytes = count * dtype.itemsize
    native, _ = load_native()
    if native is None or nbytes == 0:
        return torch.empty(tuple(shape), dtype=dtype)
    buffer = native.Buffer(nbytes, phase=phase, lock=lock)
    if lock and not buffer.locked and on_note is not None:
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        limit = (
            ""
            if soft == resource.RLIM_INFINITY
            else f"; RLIMIT_MEMLOCK (ulimit -l) is {soft} bytes"
        )
        on_note(f"memory not locked: {os.strerror(buffer.lock_error)}{limit}")
    if lock and torch.cuda.is_available():
        _register_with_cuda(buffer, nbytes)
    return torch.frombuffer(buffer, dtype=dtype, count=count).view(tuple(shape))


def _register_with_cuda(buffer: object, nbytes: int) -> None:
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch has no stub
    address = buffer.address  # type: ignore[attr-defined]
    if int(runtime.cudaHostRegister(address, nbytes, 0)) == 0:
        weakref.finalize(buffer, runtime.cudaHostUnregister, address)


class StagingPool:
    """A few equal locked buffers through which device tensors pass, one transfer at a time.

    Attributes:
        nbytes: Size of each buffer.
        count: How many there are at most; they are made when first needed.
        turn: Held by the transfer that uses the pool.
    """

    def __init__(self, nbytes: int, count: int = 4) -> None:
        self.nbytes = nbytes
        self.count = count
        self.turn = threading.Lock()
        self._free: list[Tensor] = []

    def take(self) -> Tensor:
        """A flat uint8 buffer."""
        return self._free.pop() if self._free else aligned_tensor((self.nbytes,), lock=True)

    def give_back(self, buffer: Tensor) -> None:
        """Keeps a buffer for the next taker."""
        self._free.append(buffer)
