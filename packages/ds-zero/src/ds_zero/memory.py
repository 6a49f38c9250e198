"""Memory: aligned for direct I/O, used again, given back when free; what to do if there is none."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ds_core.errors import DSError

PAGE = 4096
_MOST_IDLE = 8


class OutOfMemory(DSError, MemoryError):
    """There is no memory for what a step needs; the message says what, and the remedy."""


@contextmanager
def memory_for(what: str, *, remedy: str) -> Iterator[None]:
    """Say what there was no memory for, and what helps."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not _is_out_of_memory(error):
            raise
        [first, *_] = str(error).splitlines() or [type(error).__name__]
        raise OutOfMemory(f"no memory for {what}: {first}; {remedy}") from error


def _is_out_of_memory(error: BaseException) -> bool:
    words = ("can't allocate memory", "not enough memory", "bad_alloc")
    kinds = (MemoryError, torch.OutOfMemoryError)
    return isinstance(error, kinds) or any(word in str(error) for word in words)


def aligned(numel: int, dtype: torch.dtype) -> Tensor:
    """Uninitialised flat memory that begins on a page, as direct I/O wants it."""
    nbytes = numel * dtype.itemsize
    raw = torch.empty(nbytes + PAGE, dtype=torch.uint8)
    start = -raw.data_ptr() % PAGE
    return raw[start : start + nbytes].view(dtype)


class Buffers:
    """Aligned memory that is used again for what has about the same size."""

    def __init__(self) -> None:
        self._idle: list[Tensor] = []

    def take(self, numel: int, dtype: torch.dtype) -> Tensor:
        """Uninitialised flat memory; idle memory of other sizes makes room for new one."""
        nbytes = numel * dtype.itemsize
        for index, block in enumerate(self._idle):
            if nbytes <= block.numel() < 2 * nbytes + PAGE:
                return self._idle.pop(index)[:nbytes].view(dtype)
        freed = 0
        while self._idle and freed < nbytes:
            freed += self._idle.pop(0).numel()
        return aligned(numel, dtype)

    def put_back(self, value: Tensor) -> None:
        """Keep the memory of `value`, if it is aligned, for the next."""
        if len(self._idle) < _MOST_IDLE and value.data_ptr() % PAGE == 0:
            self._idle.append(value.detach().view(torch.uint8))

    def clear(self) -> None:
        """Keep nothing."""
        self._idle.clear()


def give_back() -> None:
    """Return freed host memory to the system.

    glibc finds no room for a tensor in the hole that one of the same size has left (alignment
    needs a little more), so that without this tensors that come and go would stay resident.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
