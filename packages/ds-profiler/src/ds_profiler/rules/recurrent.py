"""Costs of fused recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ds_profiler.cost import Cost
from ds_profiler.rules.rule import Args, Kwargs, Rule, argument

# Element-wise operations of a cell, by hidden unit, as the unfused cells of PyTorch run them.
_LSTM, _GRU, _PLAIN = 13, 10, 2


def _mkldnn(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    """One layer, one direction of an LSTM: `(input, w_ih, w_hh, b_ih, b_hh, hx, cx, ...)`."""
    steps = args[0].numel() // args[0].shape[-1]  # time * batch
    return Cost(steps * (args[1].numel() + args[2].numel()), _LSTM * steps * args[2].shape[-1])


def _mkldnn_backward(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    """Both gradients of each product; the kernel always computes all of them."""
    once = _mkldnn(args, kwargs, out)
    return Cost(2 * once.macs, 2 * once.other)


def _library(source: Any, weights: Any, mode: int, hidden: int, batch_sizes: Any) -> Cost:
    """All layers and directions at once. `mode`: 0 ReLU, 1 tanh, 2 LSTM, 3 GRU."""
    packed = batch_sizes is not None and len(batch_sizes) > 0
    steps = source.shape[0] if packed else source.numel() // source.shape[-1]
    matrices = [weight for weight in weights if weight.dim() > 1]
    cells = len(matrices) // 2
    each = {2: _LSTM, 3: _GRU}.get(mode, _PLAIN)
    return Cost(steps * sum(w.numel() for w in matrices), steps * cells * each * hidden)


def _cudnn(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    """`_cudnn_rnn(input, weight, stride0, buf, hx, cx, mode, hidden, ..., batch_sizes at 14)`."""
    sizes = argument(args, kwargs, 14, "batch_sizes")
    return _library(args[0], args[1], args[6], args[7], sizes if isinstance(sizes, list) else None)


def _cudnn_backward(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    """`(input, weight, stride0, buf, hx, cx, output, d_out, d_hy, d_cy, mode, hidden, ...)`."""
    once = _library(args[0], args[1], args[10], args[11], None)
    return Cost(2 * once.macs, 2 * once.other)


def _lstm_cell(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    return Cost(0, _LSTM * args[0].numel() // 4)


def _gru_cell(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    return Cost(0, _GRU * args[0].numel() // 3)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "aten::mkldnn_rnn_layer": _mkldnn,
        "aten::mkldnn_rnn_layer_backward": _mkldnn_backward,
        "aten::_cudnn_rnn": _cudnn,
        "aten::_cudnn_rnn_backward": _cudnn_backward,
        "aten::miopen_rnn": _cudnn,
        "aten::_thnn_fused_lstm_cell": _lstm_cell,
        "aten::_thnn_fused_gru_cell": _gru_cell,
    }
)
