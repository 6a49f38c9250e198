"""Where the bytes of tensors, arrays and other buffers lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ds_aio.errors import UnfitBuffer

# Anything with the buffer protocol; typing has no name for that before Python 3.12.
BufferLike: TypeAlias = Any


class Span(NamedTuple):
    """Memory of one buffer. `keep` owns it. A tuple because there may be many of them."""

    address: int
    nbytes: int
    keep: object


def span(buffer: BufferLike, *, writable: bool) -> Span:
    """The memory of `buffer`, which must lie in one piece in host memory.

    Raises:
        UnfitBuffer: It is not contiguous, freed, on a device, or read-only though `writable`.
    """
    if isinstance(buffer, Tensor):
        return _tensor_span(buffer)
    try:
        view = memoryview(buffer)
    except TypeError:
        raise UnfitBuffer(
            f"{type(buffer).__name__} has no memory to transfer: pass a tensor, array or buffer"
        ) from None
    if not view.c_contiguous:
        raise UnfitBuffer("the buffer is not C-contiguous: transfer a contiguous copy")
    if writable and view.readonly:
        raise UnfitBuffer(f"cannot read into a read-only {type(buffer).__name__}")
    if "O" in view.format:
        raise UnfitBuffer(f"{type(buffer).__name__} holds Python objects, whose bytes say nothing")
    if view.nbytes == 0:
        return Span(0, 0, view)
    array = np.frombuffer(view, dtype=np.uint8)
    return Span(array.__array_interface__["data"][0], view.nbytes, view)


def _tensor_span(tensor: Tensor) -> Span:
    if not tensor.is_cpu:
        raise UnfitBuffer(f"a tensor on {tensor.device} has to be staged through host memory")
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        raise UnfitBuffer(
            f"a tensor of shape {tuple(tensor.shape)} is not contiguous: use .contiguous()"
        )
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        raise UnfitBuffer(
            f"the elements of a {type(tensor).__name__} lie elsewhere: transfer the tensors in it"
        )
    if tensor.is_conj() or tensor.is_neg():
        raise UnfitBuffer(
            "the tensor is a lazy conjugate or negative: use resolve_conj(), resolve_neg()"
        )
    nbytes = tensor.numel() * tensor.element_size()
    if not nbytes:
        return Span(0, 0, None)
    memory = tensor.untyped_storage()
    if memory.nbytes() < int(tensor.storage_offset()) * tensor.element_size() + nbytes:
        raise UnfitBuffer(f"the tensor's memory was freed or shrunk: {nbytes} bytes are needed")
    # Not the tensor: it may be given other memory (`tensor.data = ...`) in the meantime.
    return Span(tensor.data_ptr(), nbytes, memory)


def spans(buffers: BufferLike | Sequence[BufferLike], *, writable: bool) -> list[Span]:
    """The memory of one buffer, or of each of a list or tuple of them."""
    if isinstance(buffers, (list, tuple)):
        return [span(buffer, writable=writable) for buffer in buffers]
    return [span(buffers, writable=writable)]


def as_bytes(tensor: Tensor) -> Tensor:
    """The bytes of a contiguous tensor as a flat uint8 view."""
    return tensor.detach().reshape(-1).view(torch.uint8)
