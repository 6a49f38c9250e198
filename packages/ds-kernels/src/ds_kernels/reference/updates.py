"""Each update formula in plain torch, on any device, one tensor at a time.

The arithmetic runs in float32, or in float64 for a float64 parameter.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

import torch
from torch import Tensor

from ds_kernels import formulas
from ds_kernels.lanes import Lane


@torch.no_grad()
def update(formula: formulas.Formula, lane: Lane) -> float:
    """Apply one update to one lane in place; returns LAMB's trust ratio, else 1."""
    work = torch.promote_types(lane.param.dtype, torch.float32)
    param, grad = lane.param.to(work), lane.grad.reshape(lane.param.shape).to(work)
    states = [state.reshape(lane.param.shape).to(work) for state in lane.states]
    new_param, new_states, trust = _apply(formula, param, grad, states)
    lane.param.copy_(new_param)
    for state, value in zip(lane.states, new_states, strict=True):
        state.copy_(value.view_as(state))
    if lane.out is not None:
        lane.out.copy_(new_param.view_as(lane.out))
    return trust


Applied = tuple[Tensor, list[Tensor], float]


@singledispatch
def _apply(f: Any, p: Tensor, grad: Tensor, states: list[Tensor]) -> Applied:
    raise TypeError(f"no update for {type(f).__name__}")


@_apply.register
def _(f: formulas.Adam, p: Tensor, grad: Tensor, states: list[Tensor]) -> Applied:
    g = grad * f.scale + p * f.l2
    m = states[0].lerp(g, f.mix1)
    v = states[1].lerp(g * g, f.mix2)
    return p - (f.step * (m / (v.sqrt() + f.eps)) + f.decay * p), [m, v], 1.0


@_apply.register
def _(f: formulas.Adagrad, p: Tensor, grad: Tensor, states: list[Tensor]) -> Applied:
    g = grad * f.scale + p * f.l2
    total = states[0] + g * g
    return p - f.step * (g / (total.sqrt() + f.eps)), [total], 1.0


@_apply.register
def _(f: formulas.Lion, p: Tensor, grad: Tensor, states: list[Tensor]) -> Applied:
    g = grad * f.scale
    direction = states[0].lerp(g, f.mix1).sign()
    return p - (f.step * direction + f.decay * p), [states[0].lerp(g, f.mix2)], 1.0


@_apply.register
def _(f: formulas.Sgd, p: Tensor, grad: Tensor, states: list[Tensor]) -> Applied:
    g = grad * f.scale + p * f.l2
    buffer = states[0] * f.momentum + g * f.gain
    return p - f.step * (g * f.nesterov + buffer * f.carry), [buffer], 1.0


@_apply.register
def _(f: formulas.PlainSgd, p: Tensor, grad: Tensor, states: list[Tensor]) -> Applied:
    return p - f.step * (grad * f.scale + p * f.l2), [], 1.0


@_apply.register
def _(f: formulas.Lamb, p: Tensor, grad: Tensor, states: list[Tensor]) -> Applied:
    g = grad * f.scale
    m = states[0].lerp(g, f.mix1)
    v = states[1].lerp(g * g, f.mix2)
    u = f.gain * (m / (v.sqrt() + f.eps)) + f.decay * p
    size, change = float(p.norm()), float(u.norm())
    trust = min(max(size / change, f.low), f.high) if size > 0 and change > 0 else 1.0
    return p - f.step * trust * u, [m, v], trust
