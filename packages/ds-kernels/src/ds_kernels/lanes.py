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
    extra = [] if lane.out is None else [lane.out]
    return [lane.param, lane.grad, *lane.states, *extra]


def check_usable(
    tensor: Tensor, role: str, label: object, count: int, device: torch.device = CPU
) -> None:
    """Raise unless `tensor` is `count` live, contiguous elements of a known dtype on `device`."""
    problem = ""
    if type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        kind = type(tensor).__name__
        problem = f"is a {kind}, whose elements lie elsewhere; step the tensors inside of it"
    elif tensor.layout is not torch.strided:
        problem = f"is {tensor.layout}; only strided (dense) tensors can be stepped"
    elif tensor.device != device:
        problem = f"is on {tensor.device}; it must be on {device}"
    elif tensor.dtype not in DTYPE_CODES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPE_CODES)
        problem = f"has dtype {tensor.dtype}; known are {known}"
    elif tensor.numel() != count:
        problem = f"has {tensor.numel()} elements; its parameter has {count}"
    elif not tensor.is_contiguous():
        problem = (
            f"is not contiguous (shape {tuple(tensor.shape)}, strides {tensor.stride()}); "
            "pass .contiguous() memory"
        )
    elif tensor.is_neg():
        problem = "is lazily negated; pass .resolve_neg() memory"
    elif count and tensor.untyped_storage().nbytes() < _end_of(tensor, count):
        problem = "has been freed: its storage no longer holds its elements"
    if problem:
        raise TensorError(f"{role}{label} {problem}")


def _end_of(tensor: Tensor, count: int) -> int:
    return (int(tensor.storage_offset()) + count) * tensor.element_size()


def check(lane: Lane, device: torch.device = CPU) -> None:
    """Raise TensorError unless every tensor of the lane can be handed out by address."""
    param, grad, states, out, label, state_names = lane
    count = param.numel()
    check_usable(param, "", label, count, device)
    check_usable(grad, "grad of ", label, count, device)
    for state, name in zip(states, state_names, strict=True):
        check_usable(state, f"{name} of ", label, count, device)
        if state.dtype is not states[0].dtype:
            raise TensorError(
                f"{name} of {label} is {state.dtype} but {state_names[0]} is {states[0].dtype}; "
                "the moments of a parameter share one dtype"
            )
    if out is not None:
        check_usable(out, "out of ", label, count, device)


def row_of(lane: Lane) -> Row:
    """Addresses and types of a checked lane, as the compiled loops take them."""
    param, grad, states, out, _, _ = lane
    addresses = [state.data_ptr() for state in states] + [0, 0]
    return (
        param.numel(),
        param.data_ptr(),
        grad.data_ptr(),
        addresses[0],
        addresses[1],
        0 if out is None else out.data_ptr(),
        DTYPE_CODES[param.dtype],
        DTYPE_CODES[grad.dtype],
        DTYPE_CODES[states[0].dtype] if states else 0,
        0 if out is None else DTYPE_CODES[out.dtype],
    )
