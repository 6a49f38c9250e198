"""Adam, Lion and LAMB over many tensors in one launch.

A program handles one block of one tensor. Three tables say where it lies: `tensors` and `starts`
(per program: which tensor, from which element) and `rows` (per tensor: count and the addresses of
parameter, gradient, two moments and copy). P, G, S and C are the types
of parameter, gradient, states and copy. The formulas are those of `native/bodies.h`.
"""

# Kernel arguments are typed by Triton when it compiles them.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _blend(m, x, mix):
    return m + mix * (x - m)


@triton.jit
def _address(rows, tensor, column: tl.constexpr, kind: tl.constexpr):
    return tl.load(rows + tensor * 6 + column).to(tl.pointer_type(kind))


@triton.jit
def adam_kernel(
    rows, tensors, starts,
    scale, mix1, mix2, step, eps, decay, l2,
    P: tl.constexpr, G: tl.constexpr, S: tl.constexpr, C: tl.constexpr,
    HAS_OUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tensor = tl.load(tensors + tl.program_id(0))
    at = tl.load(starts + tl.program_id(0)) + tl.arange(0, BLOCK)
    inside = at < tl.load(rows + tensor * 6)
    param = _address(rows, tensor, 1, P) + at
    first = _address(rows, tensor, 3, S) + at
    second = _address(rows, tensor, 4, S) + at

    p = tl.load(param, mask=inside, other=0).to(tl.float32)
    g = tl.load(_address(rows, tensor, 2, G) + at, mask=inside, other=0).to(tl.float32)
    m = tl.load(first, mask=inside, other=0).to(tl.float32)
    v = tl.load(second, mask=inside, other=0).to(tl.float32)
    g = g * scale + p * l2
    m = _blend(m, g, mix1)
    v = _blend(v, g * g, mix2)
    p = p - (step * (m / (tl.sqrt(v) + eps)) + decay * p)

    tl.store(param, p.to(P), mask=inside)
    tl.store(first, m.to(S), mask=inside)
    tl.store(second, v.to(S), mask=inside)
    if HAS_OUT:
        tl.store(_address(rows, tensor, 5, C) + at, p.to(C), mask=inside)


@triton.jit
def lion_kernel(
    rows, tensors, starts,
    scale, mix1, mix2, step, decay,
    P: tl.constexpr, G: tl.constexpr, S: tl.constexpr, C: tl.constexpr,
    HAS_OUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tensor = tl.load(tensors + tl.program_id(0))
    at = tl.load(starts + tl.program_id(0)) + tl.arange(0, BLOCK)
    inside = at < tl.load(rows + tensor * 6)
    param = _address(rows, tensor, 1, P) + at
    moment = _address(rows, tensor, 3, S) + at

    p = tl.load(param, mask=inside, other=0).to(tl.float32)
    g = tl.load(_address(rows, tensor, 2, G) + at, mask=inside, other=0).to(tl.float32) * scale
    m = tl.load(moment, mask=inside, other=0).to(tl.float32)
    c = _blend(m, g, mix1)
    direction = tl.where(c > 0, 1.0, tl.where(c < 0, -1.0, c))
    p = p - (step * direction + decay * p)

    tl.store(param, p.to(P), mask=inside)
    tl.store(moment, _blend(m, g, mix2).to(S), mask=inside)
    if HAS_OUT:
        tl.store(_address(rows, tensor, 5, C) + at, p.to(C), mask=inside)


@triton.jit
def lamb_moments_kernel(
    rows, tensors, starts, norms,
    scale, mix1, mix2, gain, eps, decay,
    P: tl.constexpr, G: tl.constexpr, S: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """New moments; writes |p|^2 and |u|^2 of this block to `norms[program]`."""
    program = tl.program_id(0)
    tensor = tl.load(tensors + program)
    at = tl.load(starts + program) + tl.arange(0, BLOCK)
    inside = at < tl.load(rows + tensor * 6)
    first = _address(rows, tensor, 3, S) + at
    second = _address(rows, tensor, 4, S) + at

    p = tl.load(_address(rows, tensor, 1, P) + at, mask=inside, other=0).to(tl.float32)
    g = tl.load(_address(rows, tensor, 2, G) + at, mask=inside, other=0).to(tl.float32) * scale
    m = _blend(tl.load(first, mask=inside, other=0).to(tl.float32), g, mix1)
    v = _blend(tl.load(second, mask=inside, other=0).to(tl.float32), g * g, mix2)
    u = gain * (m / (tl.sqrt(v) + eps)) + decay * p
    u = tl.where(inside, u, 0.0)

    tl.store(first, m.to(S), mask=inside)
    tl.store(second, v.to(S), mask=inside)
    tl.store(norms + program * 2, tl.sum(p * p))
    tl.store(norms + program * 2 + 1, tl.sum(u * u))


@triton.jit
def lamb_apply_kernel(
    rows, tensors, starts, trust,
    step, gain, eps, decay,
    P: tl.constexpr, S: tl.constexpr, C: tl.constexpr,
    HAS_OUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tensor = tl.load(tensors + tl.program_id(0))
    at = tl.load(starts + tl.program_id(0)) + tl.arange(0, BLOCK)
    inside = at < tl.load(rows + tensor * 6)
    param = _address(rows, tensor, 1, P) + at

    p = tl.load(param, mask=inside, other=0).to(tl.float32)
    m = tl.load(_address(rows, tensor, 3, S) + at, mask=inside, other=0).to(tl.float32)
    v = tl.load(_address(rows, tensor, 4, S) + at, mask=inside, other=0).to(tl.float32)
    u = gain * (m / (tl.sqrt(v) + eps)) + decay * p
    p = p - step * tl.load(trust + tensor) * u

    tl.store(param, p.to(P), mask=inside)
    if HAS_OUT:
        tl.store(_address(rows, tensor, 5, C) + at, p.to(C), mask=inside)
