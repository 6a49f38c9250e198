"""The updates of the fused optimizers over many tensors at once, for devices without Triton.

A step is a dozen `torch._foreach_*` calls for all tensors of like dtypes, where `updates` takes a
dozen calls a tensor; torch's own optimizers are built of the same calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from ds_kernels import formulas
from ds_kernels.lanes import Lane

SLAB = 1 << 28
"""Elements of one sweep (unless one tensor alone has more): bounds what it allocates."""

Tensors = list[Tensor]


@torch.no_grad()
def update_many(formula: formulas.Formula, lanes: Sequence[Lane]) -> list[float | Tensor]:
    """Apply one update to contiguous lanes of one device in place.

    Returns LAMB's trust ratios, as scalars on that device (nothing here waits for it), else ones.
    """
    ratios: list[float | Tensor] = [1.0] * len(lanes)
    for members in _slabs(lanes):
        some = [lanes[i] for i in members]
        param, grad = [_wide([getattr(x, name) for x in some]) for name in ("param", "grad")]
        columns = [list(column) for column in zip(*(x.states for x in some), strict=True)]
        states = [_wide(column) for column in columns]
        for index, ratio in zip(members, _apply(formula, param, grad, *states), strict=False):
            ratios[index] = ratio
        outs = [x.out for x in some if x.out is not None]
        if outs:
            _write(outs, param)
        for wide, column in ((param, [x.param for x in some]), *zip(states, columns, strict=True)):
            if column[0].dtype is not torch.float32:  # else it was updated in place
                _write(column, wide)
    return ratios


def _slabs(lanes: Sequence[Lane]) -> Iterator[list[int]]:
    """Positions of lanes with the same dtypes, at most `SLAB` elements together."""
    open_slabs: dict[tuple[torch.dtype | None, ...], list[int]] = {}
    filled: dict[tuple[torch.dtype | None, ...], int] = {}
    for index, lane in enumerate(lanes):
        tensors = (lane.param, lane.grad, *lane.states, lane.out)
        key = tuple(None if t is None else t.dtype for t in tensors)
        count = lane.param.numel()
        if filled.get(key, 0) + count > SLAB and key in open_slabs:
            yield open_slabs.pop(key)
            filled[key] = 0
        open_slabs.setdefault(key, []).append(index)
        filled[key] = filled.get(key, 0) + count
    yield from open_slabs.values()


def _wide(tensors: Tensors) -> Tensors:
    """The tensors as flat float32: themselves where they are, copies otherwise."""
    flat = [tensor.view(-1) for tensor in tensors]
    if flat[0].dtype is torch.float32:
        return flat
    wide = [torch.empty_like(tensor, dtype=torch.float32) for tensor in flat]
    torch._foreach_copy_(wide, flat)
    return wide


def _write(targets: Tensors, values: Tensors) -> None:
    torch._foreach_copy_([target.view(-1) for target in targets], values)


@singledispatch
def _apply(f: Any, p: Tensors, grad: Tensors, *states: Tensors) -> Tensors:
    raise TypeError(f"no update of many tensors for {type(f).__name__}")


@_apply.register
def _(f: formulas.Adam, p: Tensors, grad: Tensors, *states: Tensors) -> Tensors:
    g = list(torch._foreach_mul(grad, f.scale))
    if f.l2:
        torch._foreach_add_(g, p, alpha=f.l2)
    first, second = states
    change = _direction(g, first, second, f.mix1, f.mix2, f.eps)
    torch._foreach_mul_(change, f.step)
    if f.decay:
        torch._foreach_add_(change, p, alpha=f.decay)
    torch._foreach_sub_(p, change)
    return []


@_apply.register
def _(f: formulas.Lion, p: Tensors, grad: Tensors, *states: Tensors) -> Tensors:
    g = list(torch._foreach_mul(grad, f.scale))
    change = torch._foreach_lerp(states[0], g, f.mix1)
    torch._foreach_sign_(change)
    torch._foreach_lerp_(states[0], g, f.mix2)
    torch._foreach_mul_(change, f.step)
    if f.decay:
        torch._foreach_add_(change, p, alpha=f.decay)
    torch._foreach_sub_(p, change)
    return []


@_apply.register
def _(f: formulas.Lamb, p: Tensors, grad: Tensors, *states: Tensors) -> Tensors:
    g = list(torch._foreach_mul(grad, f.scale))
    first, second = states
    change = _direction(g, first, second, f.mix1, f.mix2, f.eps)
    torch._foreach_mul_(change, f.gain)
    if f.decay:
        torch._foreach_add_(change, p, alpha=f.decay)
    size, moved = (torch.stack(list(torch._foreach_norm(x))) for x in (p, change))
    trust = torch.where((size > 0) & (moved > 0), (size / moved).clamp(f.low, f.high), 1.0)
    torch._foreach_mul_(change, list((trust * f.step).unbind()))
    torch._foreach_sub_(p, change)
    return list(trust.unbind())


def _direction(g: Tensors, m: Tensors, v: Tensors, mix1: float, mix2: float, eps: float) -> Tensors:
    """Updates both moments and returns m / (sqrt(v) + eps); g is spent."""
    torch._foreach_lerp_(m, g, mix1)
    torch._foreach_mul_(g, g)
    torch._foreach_lerp_(v, g, mix2)
    divisor = torch._foreach_sqrt(v)
    torch._foreach_add_(divisor, eps)
    return list(torch._foreach_div(m, divisor))
