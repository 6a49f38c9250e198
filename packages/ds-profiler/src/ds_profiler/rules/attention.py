"""Costs of fused attention.

Attention is charged its matrix products, two in the forward pass, over whole score matrices: a
causal or padded call costs what an unmasked one does. Its softmax, scaling and masking are not
charged, so that a call costs the same whichever kernel PyTorch picks. The fused backward passes
compute the scores anew: five products.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ds_profiler.cost import Cost
from ds_profiler.rules.rule import Args, Kwargs, Rule, argument


def _forward(query: Any, key: Any, value: Any, *, heads_first: bool = True) -> int:
    """Products of `softmax(q k^T) v`; heads of keys may be fewer (grouped queries)."""
    length = key.shape[-2] if heads_first else key.shape[-3]
    rows = query.numel() // query.shape[-1]  # batch * query heads * query length
    return int(rows * length * (query.shape[-1] + value.shape[-1]))


def _backward(query: Any, key: Any, value: Any, *, heads_first: bool = True) -> int:
    length = key.shape[-2] if heads_first else key.shape[-3]
    rows = query.numel() // query.shape[-1]
    return int(rows * length * (3 * query.shape[-1] + 2 * value.shape[-1]))


def _fused(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    """`(query, key, value, ...)` laid out as batch, heads, length, width."""
    return Cost(_forward(args[0], args[1], args[2]))


def _fused_backward(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    """`(grad_out, query, key, value, ...)`."""
    return Cost(_backward(args[1], args[2], args[3]))


def _varlen_pairs(cum_q: Any, cum_k: Any, rows: int, length: int) -> int:
    """Query-key pairs of a packed batch: exact where the offsets can be read."""
    if cum_q is None or cum_k is None or cum_q.device.type == "meta":
        return rows * length
    sizes_q, sizes_k = cum_q.diff().tolist(), cum_k.diff().tolist()
    return int(sum(q * k for q, k in zip(sizes_q, sizes_k, strict=True)))


def _flash(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    """`_flash_attention_forward(query, key, value, cum_seq_q, cum_seq_k, ...)`.

    Batch, length, heads, width; or without a batch, packed, with offsets.
    """
    query, key, value = args[:3]
    if query.dim() == 4:
        return Cost(_forward(query, key, value, heads_first=False))
    cum_q, cum_k = argument(args, kwargs, 3, "cum_seq_q"), argument(args, kwargs, 4, "cum_seq_k")
    pairs = _varlen_pairs(cum_q, cum_k, query.shape[0], key.shape[0])
    return Cost(pairs * query.shape[1] * (query.shape[-1] + value.shape[-1]))


def _flash_backward(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    """`_flash_attention_backward(grad_out, query, key, value, out, lse, cum_q, cum_k, ...)`."""
    query, key, value = args[1:4]
    if query.dim() == 4:
        return Cost(_backward(query, key, value, heads_first=False))
    cum_q, cum_k = argument(args, kwargs, 6, "cum_seq_q"), argument(args, kwargs, 7, "cum_seq_k")
    pairs = _varlen_pairs(cum_q, cum_k, query.shape[0], key.shape[0])
    return Cost(pairs * query.shape[1] * (3 * query.shape[-1] + 2 * value.shape[-1]))


def _efficient(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    return Cost(_forward(args[0], args[1], args[2], heads_first=False))


def _efficient_backward(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    return Cost(_backward(args[1], args[2], args[3], heads_first=False))


def _lengths(tensor: Any) -> list[int]:
    """Tokens of each sequence of a batch-first tensor, nested ones included."""
    if tensor.is_nested:
        return [int(row[0]) for row in tensor._nested_tensor_size().tolist()]
    return [int(tensor.shape[1])] * int(tensor.shape[0])


def _projected(query: Any, key: Any, qkv: Any, projection: Any) -> int:
    """Input projections, attention, and output projection of a fast-path attention layer."""
    width = projection.shape[0]
    q_lengths, k_lengths = _lengths(query), _lengths(key)
    tokens_q, tokens_k = sum(q_lengths), sum(k_lengths)
    pairs = sum(q * k for q, k in zip(q_lengths, k_lengths, strict=True))
    per_third = qkv.numel() // 3
    return int(
        tokens_q * per_third
        + 2 * tokens_k * per_third
        + 2 * pairs * width
        + tokens_q * projection.numel()
    )


def _native_attention(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    """`(query, key, value, embed_dim, num_head, qkv_w, qkv_b, proj_w, proj_b, ...)`."""
    return Cost(_projected(args[0], args[1], args[5], args[7]))


def _native_encoder_layer(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    """`(src, embed_dim, num_heads, qkv_w, qkv_b, proj_w, proj_b, ..., ffn_w1, _, ffn_w2, _)`."""
    source, qkv, projection, up, down = args[0], args[3], args[5], args[14], args[16]
    tokens = sum(_lengths(source))
    width, hidden = projection.shape[0], up.shape[0]
    macs = _projected(source, source, qkv, projection) + tokens * (up.numel() + down.numel())
    return Cost(macs, tokens * (2 * 5 * width + 2 * width + hidden))  # norms, residuals, activation


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "aten::scaled_dot_product_attention": _fused,
        "aten::_scaled_dot_product_attention_math": _fused,
        "aten::_scaled_dot_product_attention_math_for_mps": _fused,
        "aten::_scaled_dot_product_flash_attention": _fused,
        "aten::_scaled_dot_product_flash_attention_for_cpu": _fused,
        "aten::_scaled_dot_product_efficient_attention": _fused,
        "aten::_scaled_dot_product_cudnn_attention": _fused,
        "aten::_scaled_dot_product_fused_attention_overrideable": _fused,
        "aten::_scaled_dot_product_flash_attention_backward": _fused_backward,
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _fused_backward,
        "aten::_scaled_dot_product_efficient_attention_backward": _fused_backward,
        "aten::_scaled_dot_product_cudnn_attention_backward": _fused_backward,
        "aten::_scaled_dot_product_fused_attention_overrideable_backward": _fused_backward,
        "aten::_flash_attention_forward": _flash,
        "aten::_flash_attention_backward": _flash_backward,
        "aten::_efficient_attention_forward": _efficient,
        "aten::_efficient_attention_backward": _efficient_backward,
        "aten::_native_multi_head_attention": _native_attention,
        "aten::_transformer_encoder_layer_fwd": _native_encoder_layer,
    }
)
