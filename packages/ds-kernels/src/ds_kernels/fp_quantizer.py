"""Tensors as small floats (4, 6, 8 or 12 bits) with one float32 scale a group.

Rules, the same on every device:

- A group is `group_size` consecutive elements in memory order; the last group of a tensor may be
  shorter and has its own scale.
- The scale maps the group's largest magnitude to the format's largest value. All codes are finite
  numbers (there is no infinity and no NaN), rounding is to nearest with ties to even: an element
  is off by at most half a step at its magnitude. Zeros stay zeros.
- A group with an infinity or a NaN comes back as NaN entirely, so that it cannot go unnoticed.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ds_kernels.errors import OptionError, TensorError
from ds_kernels.fused import uses_triton
from ds_kernels.reference import small_floats

_INPUT_TYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class FloatFormat:
    """Sign, exponent and mantissa of a small float.

    Attributes:
        exponent_bits: at least 2.
        mantissa_bits: at least 1.
    """

    exponent_bits: int
    mantissa_bits: int

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number; subnormals share its step."""
        return 2 - (1 << (self.exponent_bits - 1))

    @property
    def largest(self) -> float:
        """Largest value: all exponent codes are numbers."""
        top = self.min_exponent + (1 << self.exponent_bits) - 2
        return float((2.0 - 2.0**-self.mantissa_bits) * 2.0**top)


FORMATS = {
    4: FloatFormat(2, 1),
    6: FloatFormat(3, 2),
    8: FloatFormat(4, 3),
    12: FloatFormat(4, 7),
}
"""The format of each width: E2M1, E3M2, E4M3 and E4M7."""


@dataclass(frozen=True)
class Quantized:
    """A quantized tensor.

    Attributes:
        codes: uint8, the codes packed without gaps (12 bits: two codes in three bytes).
        scales: float32, one a group.
        shape, dtype: of the original.
        group_size: elements a scale.
        format: of the codes.
    """

    codes: Tensor
    scales: Tensor
    shape: torch.Size
    dtype: torch.dtype
    group_size: int
    format: FloatFormat


@torch.no_grad()
def quantize(tensor: Tensor, *, bits: int = 8, group_size: int = 512) -> Quantized:
    """Quantize a float32, bfloat16 or float16 tensor of any shape on any device."""
    if bits not in FORMATS:
        raise OptionError(f"bits is {bits}; choose one of {', '.join(map(str, FORMATS))}")
    if group_size < 1:
        raise OptionError(f"group_size is {group_size}; it must be at least 1")
    if tensor.dtype not in _INPUT_TYPES:
        raise TensorError(f"tensor has dtype {tensor.dtype}; use float32, bfloat16 or float16")
    float_format, flat = FORMATS[bits], tensor.contiguous().view(-1)
    codes, scales = _kernels(flat.device).encode(flat, float_format, group_size)
    packed = small_floats.pack(codes, bits)
    return Quantized(packed, scales, tensor.shape, tensor.dtype, group_size, float_format)


@torch.no_grad()
def dequantize(quantized: Quantized, dtype: torch.dtype | None = None) -> Tensor:
    """The tensor again, in its own dtype unless told otherwise."""
    q = quantized
    codes = small_floats.unpack(q.codes, q.format.bits, q.shape.numel())
    values = _kernels(codes.device).decode(codes, q.scales, q.format, q.group_size)
    result: Tensor = values.to(dtype or q.dtype).view(q.shape)
    return result


def _kernels(device: torch.device) -> Any:
    """The module with `encode` and `decode` for a device."""
    if uses_triton(device):
        return importlib.import_module("ds_kernels.triton_kernels.small_floats")
    return small_floats


class FP_Quantize:  # the name that programs know
    """Quantizer with the interface of `deepspeed.ops.fp_quantizer`.

    Args:
        quantization_config: an object with `group_size`; groups of 512 without one.
    """

    def __init__(self, quantization_config: Any = None) -> None:
        self.group_size = int(getattr(quantization_config, "group_size", 512))
        self._last: Quantized | None = None

    def quantize(
        self,
        input: Tensor,
        q_bits: int = 8,
        q_mantisa_bits: int = 3,
        stochastic_mode: bool = False,
        return_meta_tensor: bool = False,
    ) -> Any:
        """Packed codes; with `return_meta_tensor` also the scales."""
        if stochastic_mode:
            raise OptionError("stochastic_mode is not offered; rounding is to nearest even")
        self._check(q_bits, q_mantisa_bits)
        self._last = quantize(input, bits=q_bits, group_size=self.group_size)
        if return_meta_tensor:
            return self._last.codes, self._last.scales
        return self._last.codes

    def get_scales(self) -> Tensor:
        """Scales of the last `quantize`."""
        return self._quantized().scales

    def dequantize(
        self,
        input_q: Tensor,
        fp_out: Tensor | None = None,
        q_bits: int = 8,
        q_mantisa_bits: int = 3,
        scale: Tensor | None = None,
    ) -> Tensor:
        """Values of codes from the last `quantize`, into `fp_out` if given."""
        self._check(q_bits, q_mantisa_bits)
        last = self._quantized()
        scales = last.scales if scale is None else scale
        shape, dtype = last.shape, last.dtype
        again = Quantized(input_q, scales, shape, dtype, self.group_size, FORMATS[q_bits])
        values = dequantize(again)
        return values if fp_out is None else fp_out.copy_(values.view_as(fp_out))

    def _quantized(self) -> Quantized:
        if self._last is None:
            raise OptionError("nothing has been quantized yet; call quantize first")
        return self._last

    def _check(self, bits: int, mantissa_bits: int) -> None:
        known = FORMATS.get(bits)
        # The old default of 3 mantissa bits belongs to 8 bits; other widths have one format each.
        if known is None or (bits == 8 and mantissa_bits != known.mantissa_bits):
            raise OptionError(
                f"q_bits={bits} with q_mantisa_bits={mantissa_bits} is not offered; "
                "formats are 4 (E2M1), 6 (E3M2), 8 (E4M3), 12 (E4M7)"
            )
