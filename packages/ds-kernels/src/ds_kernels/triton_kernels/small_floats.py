"""Small-float codes as Triton kernels, one program a group (in torch: `reference`)."""

# Kernel arguments are typed by Triton when it compiles them.
# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ds_kernels.reference.small_floats import Format


@triton.jit
def _power_of_two(exponent):
    return ((exponent + 127) << 23).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def encode_kernel(
    flat, codes, scales, count, largest,
    GROUP: tl.constexpr, E: tl.constexpr, M: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * GROUP + lane
    inside = (lane < GROUP) & (at < count)
    x = tl.load(flat + at, mask=inside, other=0).to(tl.float32)
    finite = tl.abs(x) < float("inf")
    scale = tl.div_rn(tl.max(tl.where(finite, tl.abs(x), 0.0)), largest)
    scale = tl.where(scale > 0, scale, 1.0)
    scale = tl.where(tl.min(finite.to(tl.int32)) == 1, scale, float("nan"))
    tl.store(scales + tl.program_id(0), scale)

    y = tl.div_rn(x, tl.zeros_like(x) + scale)
    y = tl.where(tl.abs(y) < float("inf"), y, 0.0)
    bits = y.to(tl.int32, bitcast=True)
    exponent = tl.maximum(((bits >> 23) & 0xFF) - 127, LOW)
    # Adding 2**23 rounds to the nearest integer, ties to even.
    steps = ((tl.abs(y) * _power_of_two(M - exponent) + 8388608.0) - 8388608.0).to(tl.int32)
    top = (1 << (E + M)) - 1
    magnitude = tl.minimum(((exponent - LOW) << M) + steps, top)
    tl.store(codes + at, magnitude | (((bits >> 31) & 1) << (E + M)), mask=inside)


@triton.jit
def decode_kernel(
    codes, scales, flat, count,
    GROUP: tl.constexpr, E: tl.constexpr, M: tl.constexpr, LOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * GROUP + lane
    inside = (lane < GROUP) & (at < count)
    code = tl.load(codes + at, mask=inside, other=0)
    magnitude = code & ((1 << (E + M)) - 1)
    field = magnitude >> M
    normal = (field > 0).to(tl.int32)
    whole = (magnitude & ((1 << M) - 1)) + (normal << M)
    value = whole.to(tl.float32) * _power_of_two(field - normal + LOW - M)
    value = tl.where((code & (1 << (E + M))) != 0, -value, value)
    tl.store(flat + at, value * tl.load(scales + tl.program_id(0)), mask=inside)


def encode(flat: Tensor, fmt: Format, group_size: int) -> tuple[Tensor, Tensor]:
    """Codes (int32, one an element) and scales (float32, one a group) of a flat tensor."""
    groups = -(-flat.numel() // group_size)
    codes = torch.empty(flat.numel(), dtype=torch.int32, device=flat.device)
    scales = torch.empty(groups, dtype=torch.float32, device=flat.device)
    if groups:
        encode_kernel[(groups,)](
            flat, codes, scales, flat.numel(), fmt.largest, *_constants(fmt, group_size)
        )
    return codes, scales


def decode(codes: Tensor, scales: Tensor, fmt: Format, group_size: int) -> Tensor:
    """Values (float32) of int32 codes."""
    flat = torch.empty(codes.numel(), dtype=torch.float32, device=codes.device)
    if len(scales):
        decode_kernel[(len(scales),)](
            codes, scales, flat, codes.numel(), *_constants(fmt, group_size)
        )
    return flat


def _constants(fmt: Format, group_size: int) -> tuple[int, ...]:
    block = triton.next_power_of_2(group_size)
    return (group_size, fmt.exponent_bits, fmt.mantissa_bits, fmt.min_exponent, block)
