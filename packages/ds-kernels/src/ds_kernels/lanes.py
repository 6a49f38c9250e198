"""The tensors one update touches, and the checks they pass before their addresses leave Python."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ds_kernels.errors import TensorError

CPU = torch.device("cpu")
DTYPE_CODES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

Row = tuple[int, int, int, int, int, int, int, int, int, int]


class Lane(NamedTuple):
    """One parameter with what belongs to it; all tensors have the same number of elements.

    Attributes:
        param: updated in place.
        grad: read.
        states: the moments in the order of the formula, updated in place, of one dtype.
        out: receives the new parameter in its own dtype, or None.
        label: how messages call this parameter (its `str`).
        state_names: how messages call the moments.
    """

    param: Tensor
    grad: Tensor
    states: tuple[Tensor, ...]
    out: Tensor | None
    label: object
    state_names: tuple[str, ...]


def tensors(lane: Lane) -> list[Tensor]:
    """All tensors of a lane."""
    param, grad, states, out, _, _ = lane
    return [param, grad, *states] if out is None else [param, grad, *states, out]


def is_usable(lane: Lane, device: torch.device = CPU) -> bool:
    """Whether every tensor of the lane can be handed out by address: the quick half of `check`.

    All tensors must be as many live, contiguous elements of a known dtype on `device`. Written as
    one loop without calls: with many small parameters this is most of what a step costs.
    """
    count = lane.param.numel()
    for tensor in tensors(lane):
        if (
            type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__
            or tensor.layout is not torch.strided
            or tensor.device != device
            or tensor.dtype not in DTYPE_CODES
            or tensor.numel() != count
            or not tensor.is_contiguous()
            or tensor.is_neg()
            or tensor.untyped_storage().nbytes()
            < (tensor.storage_offset() + count) * tensor.element_size() * bool(count)
        ):
            return False
    states = lane.states
    return len(states) < 2 or states[0].dtype is states[1].dtype


def check(lane: Lane, device: torch.device = CPU) -> None:
    """Raise TensorError, which names the tensor, unless the lane `is_usable`."""
    if is_usable(lane, device):
        return
    param, grad, states, out, label, state_names = lane
    names = ("", "grad of ", *(f"{name} of " for name in state_names), "out of ")
    for tensor, name in zip((param, grad, *states, out), names, strict=True):
        problem = "" if tensor is None else _problem(tensor, param.numel(), device)
        if problem:
            raise TensorError(f"{name}{label} {problem}")
    raise TensorError(
        f"{state_names[1]} of {label} is {states[1].dtype} but {state_names[0]} is "
        f"{states[0].dtype}; the moments of a parameter share one dtype"
    )


def _problem(tensor: Tensor, count: int, device: torch.device) -> str:
    """What keeps a tensor from being usable, or nothing."""
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        kind = type(tensor).__name__
        return f"is a {kind}, whose elements lie elsewhere; step the tensors inside of it"
    if tensor.layout is not torch.strided:
        return f"is {tensor.layout}; only strided (dense) tensors can be stepped"
    if tensor.device != device:
        return f"is on {tensor.device}; it must be on {device}"
    if tensor.dtype not in DTYPE_CODES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPE_CODES)
        return f"has dtype {tensor.dtype}; known are {known}"
    if tensor.numel() != count:
        return f"has {tensor.numel()} elements; its parameter has {count}"
    if not tensor.is_contiguous():
        return (
            f"is not contiguous (shape {tuple(tensor.shape)}, strides {tensor.stride()}); "
            "pass .contiguous() memory"
        )
    if tensor.is_neg():
        return "is lazily negated; pass .resolve_neg() memory"
    end = (tensor.storage_offset() + count) * tensor.element_size()
    if count and tensor.untyped_storage().nbytes() < end:
        return "has been freed: its storage no longer holds its elements"
    return ""


def row_of(lane: Lane) -> Row:
    """Addresses and types of a checked lane, as the compiled loops take them."""
    param, grad, states, out, _, _ = lane
    first, second = (*states, None, None)[:2]
    return (
        param.numel(),
        param.data_ptr(),
        grad.data_ptr(),
        0 if first is None else first.data_ptr(),
        0 if second is None else second.data_ptr(),
        0 if out is None else out.data_ptr(),
        DTYPE_CODES[param.dtype],
        DTYPE_CODES[grad.dtype],
        0 if first is None else DTYPE_CODES[first.dtype],
        0 if out is None else DTYPE_CODES[out.dtype],
    )
