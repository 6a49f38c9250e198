"""Costs of matrix products.

Counted by the shapes of what is multiplied; the bias of a linear layer rides along for free, as
it starts the accumulation.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Any

from ds_profiler.cost import Cost
from ds_profiler.rules.rule import Args, Kwargs, Rule


def _product_first(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    """`a @ b` for 2-d or batched 3-d operands."""
    return Cost(args[0].numel() * args[1].shape[-1])


def _product_after_bias(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    return Cost(args[1].numel() * args[2].shape[-1])


def _product_after_sum(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    return Cost(args[1].numel() * args[2].shape[-1], out.numel())


def _product_then_activation(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    return Cost(args[1].numel() * args[2].shape[-1], out.numel())


def _vector(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    return Cost(args[0].numel())


def _vector_after_bias(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    return Cost(args[1].numel())


def _outer(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    return Cost(out.numel())


def _by_output(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    """Any product whose left operand's last dimension is the one summed over."""
    return Cost(out.numel() * args[0].shape[-1])


def _grouped(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    left, right = args[0], args[1]
    if left.dim() == 3 and right.dim() == 2:  # the columns of `right` are split over the groups
        return Cost(left.shape[1] * left.shape[2] * right.shape[1])
    return Cost(left.numel() * right.shape[-1])


def _trilinear(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    """A sum over the broadcast product of three tensors (`nn.Bilinear`)."""
    shapes = []
    for tensor, expand in zip(args[:3], args[3:6], strict=True):
        shape = list(tensor.shape)
        for dim in expand:
            shape.insert(dim, 1)
        shapes.append(shape)
    return Cost(prod(max(sizes) for sizes in zip(*shapes, strict=True)))


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "aten::mm": _product_first,
        "aten::bmm": _product_first,
        "aten::addmm": _product_after_bias,
        "aten::baddbmm": _product_after_sum,
        "aten::addbmm": _product_after_sum,
        "aten::_addmm_activation": _product_then_activation,
        "aten::mv": _vector,
        "aten::dot": _vector,
        "aten::vdot": _vector,
        "aten::addmv": _vector_after_bias,
        "aten::addr": _outer,
        "aten::ger": _outer,
        "aten::_int_mm": _product_first,
        "aten::_scaled_mm": _product_first,
        "aten::_grouped_mm": _grouped,
        "aten::_scaled_grouped_mm": _grouped,
        "aten::linear": _by_output,
        "aten::mkldnn_linear": _by_output,
        "aten::_weight_int8pack_mm": _by_output,
        "aten::_weight_int4pack_mm": _by_output,
        "aten::_weight_int4pack_mm_for_cpu": _by_output,
        "aten::_trilinear": _trilinear,
    }
)
