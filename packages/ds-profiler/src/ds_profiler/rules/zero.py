"""Operators that move, make or compare data and so cost no floating-point operation."""

from __future__ import annotations

_MAKING = """
empty empty_like empty_strided empty_permuted empty_quantized new_empty new_empty_strided zeros
zeros_like new_zeros ones ones_like new_ones full full_like new_full arange linspace logspace eye
scalar_tensor rand rand_like randn randn_like randint randint_like randperm bernoulli normal
uniform exponential multinomial geometric cauchy log_normal random tril_indices triu_indices
hann_window hamming_window bartlett_window blackman_window complex polar one_hot
_efficientzerotensor
"""

_MOVING = """
clone copy copy_ _to_copy to contiguous cat concat stack hstack vstack unsafe_split
unsafe_split_with_sizes unsafe_chunk split_with_sizes_copy split_copy _unsafe_view _reshape_copy
_reshape_alias view_copy slice_backward select_backward diagonal_backward unfold_backward
as_strided_scatter slice_scatter select_scatter diagonal_scatter index index_select index_put
_index_put_impl_ _unsafe_index _unsafe_index_put index_copy index_fill gather gather_backward
scatter take take_along_dim put where masked_fill masked_select masked_scatter nonzero
nonzero_static constant_pad_nd pad reflection_pad1d reflection_pad2d reflection_pad3d
replication_pad1d replication_pad2d replication_pad3d reflection_pad2d_backward
reflection_pad1d_backward replication_pad2d_backward roll flip rot90 repeat repeat_interleave tile
fill zero set resize resize_as detach lift lift_fresh lift_fresh_copy _local_scalar_dense tril triu
diag diag_embed embedding pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle
im2col col2im unfold_copy expand_copy permute_copy t_copy transpose_copy squeeze_copy
unsqueeze_copy alias_copy detach_copy _pin_memory pin_memory is_pinned _foreach_copy _foreach_zero
_conj_physical conj_physical resolve_conj resolve_neg max_unpool2d max_unpool3d
_nested_tensor_from_mask _nested_tensor_from_mask_left_aligned _nested_from_padded
_nested_from_padded_tensor nested_to_padded_tensor to_padded_tensor _nested_tensor_size
_nested_tensor_strides _nested_tensor_storage_offsets _padded_dense_to_jagged_forward
_jagged_to_padded_dense_forward segment_reduce _pack_padded_sequence
_pack_padded_sequence_backward _cudnn_rnn_flatten_weight _mkldnn_reshape
mkldnn_reorder_conv2d_weight _sparse_coo_tensor_unsafe _coalesce _to_dense _to_sparse
nll_loss_forward nll_loss2d_forward nll_loss_backward nll_loss2d_backward
"""

_COMPARING = """
argmax argmin argsort sort topk kthvalue median nanmedian mode max min amax amin cummax cummin all
any equal allclose isclose isin bincount histc searchsorted bucketize unique_dim _unique _unique2
unique_consecutive is_same_size is_nonzero item _has_compatible_shallow_copy_type isnan isinf
isfinite value_selecting_reduction_backward _assert_async _functional_assert_async
_assert_scalar _assert_tensor_metadata sym_size sym_numel sym_stride sym_storage_offset size
numel record_stream _debug_has_internal_overlap
"""

FREE_NAMES = frozenset(f"aten::{name}" for name in f"{_MAKING} {_MOVING} {_COMPARING}".split())
"""Without the trailing underscore of in-place variants."""

FREE_NAMESPACES = frozenset(
    {"prim", "prims_views", "profiler", "c10d", "_c10d_functional", "c10d_functional", "debugprims"}
)
"""Profiling marks, device queries, communication."""

SCALAR_BOOKKEEPING = frozenset(
    f"aten::{name}" for name in ("mul", "div", "add", "sub", "mul_", "div_", "add_", "sub_")
)
"""Their `.Scalar` overloads: PyTorch's own scaling inside dropout, attention, norms and means."""
