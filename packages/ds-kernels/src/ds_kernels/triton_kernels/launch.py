"""Builds the tables of a multi-tensor launch and starts its kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from ds_kernels.formulas import Adam, Formula, Lamb, Lion
from ds_kernels.lanes import Lane, check
from ds_kernels.triton_kernels import kernels

BLOCK = 4096

_KINDS = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def run(formula: Formula, lanes: Sequence[Lane]) -> list[float] | Tensor:
    """Apply one update to lanes of one device; for LAMB the trust ratios, on that device.

    Lanes of the same dtypes share a launch. Work is queued on the current stream.
    """
    for lane in lanes:
        check(lane, lane.param.device)
    trust = torch.ones(len(lanes), device=lanes[0].param.device)
    groups: dict[tuple[torch.dtype | None, ...], list[int]] = {}
    for index, lane in enumerate(lanes):
        if lane.param.numel():
            groups.setdefault(_dtypes(lane), []).append(index)
    for dtypes, members in groups.items():
        plan = _plan(dtypes, [lanes[i] for i in members])
        result = _launch(formula, plan)
        if result is not None:
            trust[torch.tensor(members, device=trust.device)] = result
    return trust


def _dtypes(lane: Lane) -> tuple[torch.dtype | None, ...]:
    out = None if lane.out is None else lane.out.dtype
    return (lane.param.dtype, lane.grad.dtype, lane.states[0].dtype, out)


@dataclass(frozen=True)
class _Plan:
    """One launch. `kinds` are the triton dtypes of parameter, gradient, moments and copy."""

    tables: tuple[Tensor, ...]  # rows, tensors, starts
    kinds: tuple[Any, ...]  # triton has no public type for its dtypes
    has_out: bool

    @property
    def grid(self) -> tuple[int]:
        return (len(self.tables[1]),)


def _plan(dtypes: tuple[torch.dtype | None, ...], lanes: list[Lane]) -> _Plan:
    rows: list[list[int]] = []
    tensors: list[int] = []
    starts: list[int] = []
    for index, lane in enumerate(lanes):
        moments = [state.data_ptr() for state in lane.states] + [0]
        out = 0 if lane.out is None else lane.out.data_ptr()
        count = lane.param.numel()
        rows.append([count, lane.param.data_ptr(), lane.grad.data_ptr(), *moments[:2], out])
        blocks = range(0, count, BLOCK)
        tensors += [index] * len(blocks)
        starts += blocks
    device = lanes[0].param.device
    tables = tuple(
        torch.tensor(x, dtype=torch.int64, device=device) for x in (rows, tensors, starts)
    )
    param, grad, state, out_type = dtypes
    kinds = tuple(_KINDS[kind or torch.float32] for kind in (param, grad, state, out_type))
    return _Plan(tables, kinds, out_type is not None)


@singledispatch
def _launch(formula: Any, plan: _Plan) -> Tensor | None:
    raise TypeError(f"no Triton kernel for {type(formula).__name__}")


@_launch.register
def _(formula: Adam, plan: _Plan) -> None:
    kernels.adam_kernel[plan.grid](*plan.tables, *formula, *plan.kinds, plan.has_out, BLOCK)


@_launch.register
def _(formula: Lion, plan: _Plan) -> None:
    kernels.lion_kernel[plan.grid](*plan.tables, *formula, *plan.kinds, plan.has_out, BLOCK)


@_launch.register
def _(formula: Lamb, plan: _Plan) -> Tensor:
    f, (rows, tensors, _), (param, grad, state, out) = formula, plan.tables, plan.kinds
    norms = torch.empty(len(tensors), 2, device=rows.device)
    weights = (f.scale, f.mix1, f.mix2, f.gain, f.eps, f.decay)
    kernels.lamb_moments_kernel[plan.grid](*plan.tables, norms, *weights, param, grad, state, BLOCK)

    squares = torch.zeros(len(rows), 2, dtype=torch.float64, device=rows.device)
    squares.index_add_(0, tensors, norms.double())
    size, change = squares.sqrt().unbind(1)
    ratio = (size / change).clamp(f.low, f.high)
    trust = torch.where((size > 0) & (change > 0), ratio, 1.0).float()

    scalars = (f.step, f.gain, f.eps, f.decay)
    kinds = (param, state, out)
    kernels.lamb_apply_kernel[plan.grid](*plan.tables, trust, *scalars, *kinds, plan.has_out, BLOCK)
    return trust
