"""Costs of everything that is not a product of matrices.

The conventions are those of the flops profiler people compare with: one operation an element for
an activation, a softmax, an interpolation, an addition; one an input element for poolings and
sums; 4 or 5 an element for norms. A backward norm costs twice its forward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import log2
from types import MappingProxyType
from typing import Any

from torch import Tensor

from ds_profiler.cost import FREE, Cost
from ds_profiler.rules.rule import Args, Kwargs, Rule, argument


def _size(value: Any) -> int:
    """Floating-point elements of a tensor or of a list of them."""
    if isinstance(value, Tensor):
        real = value.is_floating_point() or value.is_complex()
        return value.numel() if real else 0
    if isinstance(value, (list, tuple)):
        return sum(_size(item) for item in value)
    return 0


def per_output(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    """One operation for each floating-point element that comes out."""
    return Cost(0, _size(out))


def per_input(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    """One operation for each floating-point element of the first argument."""
    return Cost(0, _size(args[0]) if args else 0)


def _first_out(times: int) -> Rule:
    def rule(args: Args, kwargs: Kwargs, out: Any) -> Cost:
        return Cost(0, times * _size(out[0] if isinstance(out, (list, tuple)) else out))

    return rule


def _norm(weight_at: int, weight_name: str = "weight") -> Rule:
    """4 an element for normalising, 1 more for an affine map."""

    def rule(args: Args, kwargs: Kwargs, out: Any) -> Cost:
        affine = argument(args, kwargs, weight_at, weight_name) is not None
        return Cost(0, (5 if affine else 4) * _size(args[0]))

    return rule


def _batch_norm(training_at: int | None) -> Rule:
    """As other norms while statistics are computed; 1 or 2 an element when they are given."""

    def rule(args: Args, kwargs: Kwargs, out: Any) -> Cost:
        affine = argument(args, kwargs, 1, "weight") is not None
        training = training_at is not None and bool(args[training_at])
        return Cost(0, ((4 if training else 1) + int(affine)) * _size(args[0]))

    return rule


def _fft(of_output: bool, times: float) -> Rule:
    """`5 n log2 n` for a complex transform of n points, half of it for a real one."""

    def rule(args: Args, kwargs: Kwargs, out: Any) -> Cost:
        tensor = out if of_output else args[0]
        points = [tensor.shape[dim] for dim in args[1]]
        factor = sum(log2(n) for n in points if n > 1)
        return Cost(0, round(times * tensor.numel() * factor))

    return rule


def _cdist(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    return Cost(0, 3 * out.numel() * args[0].shape[-1])


def _embedding_bag(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    return Cost(0, args[1].numel() * args[0].shape[-1])


def _foreach(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    return Cost(0, _size(args[0]))


def _square(numerator: int, denominator: int) -> Rule:
    """A fraction of `n^3` for each square matrix of a batch."""

    def rule(args: Args, kwargs: Kwargs, out: Any) -> Cost:
        return Cost(0, numerator * args[0].numel() * args[0].shape[-1] // denominator)

    return rule


def _solve(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    result = out[0] if isinstance(out, (list, tuple)) else out
    n = args[0].shape[-1]
    return Cost(0, 2 * args[0].numel() * n // 3 + 2 * result.numel() * n)


def _triangular(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    return Cost(0, out.numel() * args[0].shape[-1])


def _inside_attention(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    """Only unfused attention calls this; `FlopCounter` also takes back the mask added before."""
    return FREE


def _all(names: str, rule: Callable[[Args, Kwargs, Any], Cost]) -> dict[str, Rule]:
    return {f"aten::{name}": rule for name in names.split()}


RULES: Mapping[str, Rule] = MappingProxyType(
    _all("_softmax _log_softmax softmax log_softmax", per_output)
    | _all("_safe_softmax", _inside_attention)
    | _all("_softmax_backward_data _log_softmax_backward_data", _first_out(2))
    | _all("glu prelu celu rrelu_with_noise logit hardtanh threshold _prelu_kernel", per_output)
    | _all("native_dropout native_dropout_backward _fused_dropout", _first_out(1))
    | _all("glu_backward rrelu_with_noise_backward _prelu_kernel_backward", _first_out(1))
    | _all("native_layer_norm layer_norm", _norm(2))
    | _all("native_layer_norm_backward", _first_out(10))
    | _all("native_group_norm", _norm(1))
    | _all("native_group_norm_backward", _first_out(10))
    | _all("_fused_rms_norm rms_norm", _norm(2))
    | _all("_fused_rms_norm_backward", _first_out(10))
    | _all("native_batch_norm", _batch_norm(5))
    | _all("_native_batch_norm_legit", _batch_norm(5))
    | _all("cudnn_batch_norm miopen_batch_norm", _batch_norm(5))
    | _all("_batch_norm_with_update", lambda a, k, o: Cost(0, 5 * _size(a[0])))
    | _all("_native_batch_norm_legit_no_training _batch_norm_no_update", _batch_norm(None))
    | _all(
        "native_batch_norm_backward cudnn_batch_norm_backward batch_norm_backward", _first_out(10)
    )
    | _all("avg_pool1d avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d", per_input)
    | _all("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d", per_input)
    | _all("mkldnn_adaptive_avg_pool2d lp_pool2d fractional_max_pool2d", per_input)
    | _all("max_pool1d max_pool2d max_pool3d max_pool2d_with_indices", per_input)
    | _all("max_pool3d_with_indices adaptive_max_pool2d adaptive_max_pool3d", per_input)
    | _all("max_pool2d_with_indices_backward max_pool3d_with_indices_backward", _first_out(1))
    | _all("avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward", _first_out(1))
    | _all("_adaptive_avg_pool3d_backward adaptive_max_pool2d_backward", _first_out(1))
    | _all("upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_linear1d", per_output)
    | _all("_upsample_nearest_exact1d _upsample_nearest_exact2d upsample_bilinear2d", per_output)
    | _all("_upsample_nearest_exact3d upsample_trilinear3d upsample_bicubic2d", per_output)
    | _all("_upsample_bilinear2d_aa _upsample_bicubic2d_aa grid_sampler_2d", per_output)
    | _all("grid_sampler_3d affine_grid_generator", per_output)
    | _all("upsample_nearest1d_backward upsample_nearest2d_backward", per_input)
    | _all("upsample_nearest3d_backward upsample_linear1d_backward", per_input)
    | _all("upsample_bilinear2d_backward upsample_bicubic2d_backward", per_input)
    | _all("upsample_trilinear3d_backward grid_sampler_2d_backward", per_input)
    | _all("sum nansum mean prod var std var_mean std_mean norm linalg_vector_norm", per_input)
    | _all("logsumexp cumsum cumprod logcumsumexp trace renorm dist aminmax", per_input)
    | _all("mse_loss smooth_l1_loss huber_loss binary_cross_entropy soft_margin_loss", per_input)
    | _all("mse_loss_backward smooth_l1_loss_backward huber_loss_backward", _first_out(1))
    | _all("binary_cross_entropy_backward soft_margin_loss_backward", _first_out(1))
    | _all("binary_cross_entropy_with_logits multi_margin_loss", per_input)
    | _all("embedding_dense_backward index_add scatter_add scatter_reduce", per_output)
    | _all("_embedding_bag _embedding_bag_forward_only", _embedding_bag)
    | _all("_fft_c2c", _fft(False, 5))
    | _all("_fft_r2c", _fft(False, 2.5))
    | _all("_fft_c2r", _fft(True, 2.5))
    | _all("_cdist_forward _cdist_backward", _cdist)
    | _all("linalg_cholesky_ex linalg_cholesky cholesky", _square(1, 3))
    | _all("linalg_lu_factor_ex", _square(2, 3))
    | _all("linalg_inv_ex", _square(2, 1))
    | _all("_linalg_solve_ex", _solve)
    | _all("linalg_solve_triangular triangular_solve", _triangular)
    | _all("lerp addcmul addcdiv fake_quantize_per_tensor_affine_cachemask", per_output)
)

FOREACH: Rule = _foreach
