"""Small floats: error bounds, remainders, zeros, bad values, one result a path (case 10.3)."""

from __future__ import annotations

import os

import pytest
import torch

from ds_kernels import OptionError, TensorError
from ds_kernels.fp_quantizer import FORMATS, FP_Quantize, dequantize, quantize
from ds_kernels.reference import small_floats

os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are first imported

BITS = tuple(FORMATS)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def half_steps(values: torch.Tensor, bits: int, group_size: int) -> torch.Tensor:
    """Half the distance of neighbouring codes at each value, from the definition."""
    fmt, flat = FORMATS[bits], values.double().flatten()
    limits = torch.empty_like(flat)
    for start in range(0, len(flat), group_size):
        group = flat[start : start + group_size]
        scale = group.abs().max() / fmt.largest if group.abs().max() > 0 else 1.0
        exponent = (group.abs() / scale).log2().floor().clamp(min=fmt.min_exponent)
        limits[start : start + group_size] = scale * 2.0 ** (exponent - fmt.mantissa_bits) / 2
    return limits.view(values.shape)


@pytest.mark.parametrize("group_size", [64, 100, 512, 5000])
@pytest.mark.parametrize("bits", BITS)
def test_the_error_is_at_most_half_a_step(bits: int, group_size: int) -> None:
    torch.manual_seed(1)
    values = torch.randn(3, 341) * 10 ** torch.linspace(-3, 3, 341)
    error = (dequantize(quantize(values, bits=bits, group_size=group_size)) - values).abs()
    assert (error <= half_steps(values, bits, group_size) * (1 + 1e-5)).all()


@pytest.mark.parametrize("bits", BITS)
def test_every_code_survives_a_round_trip(bits: int) -> None:
    codes = torch.arange(2**bits, dtype=torch.int32)
    values = small_floats.decode(codes, torch.ones(1), FORMATS[bits], 2**bits)
    again, scales = small_floats.encode(values, FORMATS[bits], 2**bits)
    assert scales.item() == 1.0
    assert torch.equal(again, codes)


@pytest.mark.parametrize("count", [0, 1, 5, 6, 7, 1023])
@pytest.mark.parametrize("bits", BITS)
def test_packing_leaves_no_gaps_and_loses_nothing(bits: int, count: int) -> None:
    codes = torch.randint(0, 2**bits, (count,), dtype=torch.int32)
    packed = small_floats.pack(codes, bits)
    assert packed.numel() <= count * bits / 8 + 3
    assert torch.equal(small_floats.unpack(packed, bits, count), codes)


@pytest.mark.parametrize("group_size", [16, 48, 512])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bits", BITS)
def test_reference_and_interpreted_kernel_agree_bit_by_bit(
    bits: int, dtype: torch.dtype, group_size: int
) -> None:
    from ds_kernels.triton_kernels import small_floats as kernel

    torch.manual_seed(2)
    flat = (torch.randn(1000) * 10 ** torch.linspace(-4, 2, 1000)).to(dtype)
    flat[100:200] = 0
    flat[700], flat[900] = torch.inf, torch.nan
    fmt = FORMATS[bits]
    codes, scales = small_floats.encode(flat, fmt, group_size)
    kernel_codes, kernel_scales = kernel.encode(flat, fmt, group_size)
    assert torch.equal(codes, kernel_codes)
    torch.testing.assert_close(scales, kernel_scales, rtol=0, atol=0, equal_nan=True)
    values = small_floats.decode(codes, scales, fmt, group_size)
    kernel_values = kernel.decode(codes, scales, fmt, group_size)
    torch.testing.assert_close(values, kernel_values, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("bits", BITS)
def test_zeros_stay_zeros(bits: int) -> None:
    values = torch.zeros(70)
    values[64:] = 3.0
    values[65] = 0.0
    assert torch.equal(dequantize(quantize(values, bits=bits, group_size=32)), values)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("bits", BITS)
def test_a_bad_value_spoils_its_group_and_no_other(bits: int, bad: float) -> None:
    values = torch.ones(10)
    values[2] = bad
    back = dequantize(quantize(values, bits=bits, group_size=4))
    assert back[:4].isnan().all()
    assert torch.equal(back[4:], values[4:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0,), (), (3, 5, 7)])
def test_shape_and_dtype_come_back(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    values = torch.ones(shape, dtype=dtype, requires_grad=True)
    back = dequantize(quantize(values, group_size=8))
    assert (back.shape, back.dtype) == (values.shape, dtype)
    torch.testing.assert_close(back, values.detach(), rtol=0.07, atol=0)


def test_the_old_interface_quantizes_and_restores() -> None:
    values = torch.randn(4, 300)
    quantizer = FP_Quantize()
    codes, scales = quantizer.quantize(values, q_bits=6, return_meta_tensor=True)
    out = torch.empty(4, 300)
    quantizer.dequantize(codes, out, q_bits=6, scale=scales)
    assert torch.equal(out, dequantize(quantize(values, bits=6)))
    assert torch.equal(quantizer.get_scales(), scales)


def old(**settings: object) -> object:
    return FP_Quantize().quantize(torch.ones(4), **settings)


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda: quantize(torch.ones(4), bits=5), OptionError, "bits is 5; choose one of 4, 6, 8"),
        (lambda: quantize(torch.ones(4), group_size=0), OptionError, "group_size is 0"),
        (lambda: quantize(torch.ones(4).double()), TensorError, "dtype torch.float64"),
        (lambda: FP_Quantize().get_scales(), OptionError, "call quantize first"),
        (lambda: old(q_bits=8, q_mantisa_bits=2), OptionError, "E4M3"),
        (lambda: old(stochastic_mode=True), OptionError, "nearest"),
    ],
)
def test_what_is_not_offered_is_refused(use, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        use()
