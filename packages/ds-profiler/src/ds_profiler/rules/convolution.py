"""Costs of convolutions.

A position of the output is charged the whole kernel even where it overlaps the padding, as every
other counter does. The bias is an addition an output element.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ds_profiler.cost import Cost
from ds_profiler.rules.rule import Args, Kwargs, Rule, argument


def _kernel(weight: Any) -> int:
    """Products for one element of the side the kernel is centred on."""
    return int(weight[0].numel()) if weight.shape[0] else 0


def _convolution(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    """`convolution(input, weight, bias, stride, padding, dilation, transposed, ...)`.

    Groups are in the weight's shape: `(out, in / groups, *k)`, transposed `(in, out / groups, *k)`.
    """
    centre = args[0] if argument(args, kwargs, 6, "transposed", False) else out
    bias = argument(args, kwargs, 2, "bias")
    return Cost(centre.numel() * _kernel(args[1]), 0 if bias is None else out.numel())


def _convolution_backward(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    """The gradients of input and weight cost a forward pass each; those asked for are computed."""
    grad, source, weight = args[0], args[1], args[2]
    transposed = argument(args, kwargs, 7, "transposed", False)
    wants_input, wants_weight, wants_bias = argument(args, kwargs, 10, "output_mask")
    once = (source if transposed else grad).numel() * _kernel(weight)
    return Cost(once * (int(wants_input) + int(wants_weight)), grad.numel() if wants_bias else 0)


def _plain(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    return Cost(out.numel() * _kernel(args[1]))


def _transposed(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    return Cost(args[0].numel() * _kernel(args[1]))


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "aten::convolution": _convolution,
        "aten::_convolution": _convolution,
        "aten::convolution_overrideable": _convolution,
        "aten::convolution_backward": _convolution_backward,
        "aten::mkldnn_convolution": _plain,
        "aten::cudnn_convolution": _plain,
        "aten::cudnn_convolution_relu": _plain,
        "aten::miopen_convolution": _plain,
        "aten::conv_depthwise3d": _plain,
        "aten::_conv_depthwise2d": _plain,
        "aten::_slow_conv2d_forward": _plain,
        "aten::slow_conv3d_forward": _plain,
        "aten::cudnn_convolution_transpose": _transposed,
        "aten::miopen_convolution_transpose": _transposed,
    }
)
