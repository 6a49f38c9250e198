"""Host memory: aligned for direct I/O, and given back when it is free."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

PAGE = 4096


def aligned(numel: int, dtype: torch.dtype) -> Tensor:
    """Uninitialised flat memory that begins on a page, as direct I/O wants it."""
    nbytes = numel * dtype.itemsize
    raw = torch.empty(nbytes + PAGE, dtype=torch.uint8)
    start = -raw.data_ptr() % PAGE
    return raw[start : start + nbytes].view(dtype)


def give_back() -> None:
    """Return freed host memory to the system.

    glibc finds no room for a tensor in the hole that one of the same size has left (alignment
    needs a little more), so that without this tensors that come and go would stay resident.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
