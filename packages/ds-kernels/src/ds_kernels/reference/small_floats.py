"""Small-float codes in plain torch, and their packing into bytes.

Every step is exact in float32 except one division and the rounding, so kernels agree bit by bit.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Format(Protocol):
    """What the arithmetic needs to know of a format."""

    @property
    def mantissa_bits(self) -> int: ...
    @property
    def exponent_bits(self) -> int: ...
    @property
    def min_exponent(self) -> int: ...
    @property
    def largest(self) -> float: ...


ROUNDER = 8388608.0
"""2**23: adding and subtracting it rounds a small float32 to the nearest integer, ties to even."""


def encode(flat: Tensor, fmt: Format, group_size: int) -> tuple[Tensor, Tensor]:
    """Codes (int32, one an element) and scales (float32, one a group) of a flat tensor."""
    count = flat.numel()
    groups = -(-count // group_size)
    padded = torch.zeros(groups * group_size, dtype=torch.float32, device=flat.device)
    padded[:count] = flat
    rows = padded.view(groups, group_size)
    scales = _scales(rows, fmt)
    values = torch.nan_to_num(rows / scales[:, None], 0.0, 0.0, 0.0).flatten()[:count]

    bits = values.view(torch.int32)
    exponent = (((bits >> 23) & 0xFF) - 127).clamp(min=fmt.min_exponent)
    inverse_step = _power_of_two(fmt.mantissa_bits - exponent)
    steps = ((values.abs() * inverse_step + ROUNDER) - ROUNDER).to(torch.int32)
    magnitude = ((exponent - fmt.min_exponent) << fmt.mantissa_bits) + steps
    top = (1 << (fmt.exponent_bits + fmt.mantissa_bits)) - 1
    sign = (bits >> 31) & 1
    return magnitude.clamp(max=top) | (sign * (top + 1)), scales


def _scales(rows: Tensor, fmt: Format) -> Tensor:
    if rows.numel() == 0:
        return torch.ones(len(rows), dtype=torch.float32, device=rows.device)
    scales = rows.abs().amax(dim=1) / fmt.largest
    scales = torch.where(scales > 0, scales, 1.0)
    return torch.where(rows.isfinite().all(dim=1), scales, torch.nan)


def decode(codes: Tensor, scales: Tensor, fmt: Format, group_size: int) -> Tensor:
    """Values (float32) of int32 codes."""
    top = (1 << (fmt.exponent_bits + fmt.mantissa_bits)) - 1
    magnitude = codes & top
    field = magnitude >> fmt.mantissa_bits
    mantissa = magnitude & ((1 << fmt.mantissa_bits) - 1)
    normal = (field > 0).to(torch.int32)
    whole = mantissa + (normal << fmt.mantissa_bits)
    exponent = field - normal + fmt.min_exponent - fmt.mantissa_bits
    values = whole.to(torch.float32) * _power_of_two(exponent)
    signed = torch.where((codes & (top + 1)) != 0, -values, values)
    return signed * scales.repeat_interleave(group_size)[: codes.numel()]


def _power_of_two(exponent: Tensor) -> Tensor:
    """2**exponent for normal results, exactly."""
    return ((exponent + 127) << 23).to(torch.int32).view(torch.float32)


def pack(codes: Tensor, bits: int) -> Tensor:
    """int32 codes of a width without gaps in bytes, the first code in the lowest bits."""
    if bits == 8:
        return codes.to(torch.uint8)
    together, size = _unit(bits)
    padding = -codes.numel() % together
    rows = torch.cat([codes, codes.new_zeros(padding)]).view(-1, together)
    word = sum(rows[:, i] << (bits * i) for i in range(together))
    if not isinstance(word, Tensor):
        raise TypeError("a unit holds at least one code")
    columns = [(word >> (8 * i)) & 0xFF for i in range(size)]
    return torch.stack(columns, dim=1).to(torch.uint8).flatten()


def unpack(packed: Tensor, bits: int, count: int) -> Tensor:
    """The first `count` codes again, as int32."""
    if bits == 8:
        return packed.flatten()[:count].to(torch.int32)
    together, size = _unit(bits)
    rows = packed.view(-1, size).to(torch.int32)
    word = sum(rows[:, i] << (8 * i) for i in range(size))
    if not isinstance(word, Tensor):
        raise TypeError("a unit holds at least one byte")
    columns = [(word >> (bits * i)) & ((1 << bits) - 1) for i in range(together)]
    return torch.stack(columns, dim=1).flatten()[:count]


def _unit(bits: int) -> tuple[int, int]:
    """Codes and bytes of the smallest gapless unit."""
    return {4: (2, 1), 6: (4, 3), 12: (2, 3)}[bits]
