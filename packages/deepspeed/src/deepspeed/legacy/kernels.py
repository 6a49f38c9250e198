"""Where the optimizers and kernels are found under their old import paths."""

from __future__ import annotations

_OPTIMIZERS = "deepspeed.adapters.kernel_optimizers"
_BUILDERS = "deepspeed.adapters.op_builder_kernels"
_BASE = {"OpBuilder": "deepspeed.adapters.op_builder:OpBuilder"}

_ZENFLOW = "!ZenFlow is not offered: it would need importance-aware asynchronous offload"
_TRANSFORMER = (
    "!the fused transformer layers are not offered; use torch's own attention and compile"
)
_SPARSE = "!sparse attention is not offered; use torch's flex_attention with a block mask"

_CPU_ADAM = {"DeepSpeedCPUAdam": f"{_OPTIMIZERS}:DeepSpeedCPUAdam"}
_FUSED_ADAM = {"FusedAdam": f"{_OPTIMIZERS}:FusedAdam"}
_CPU_ADAGRAD = {"DeepSpeedCPUAdagrad": f"{_OPTIMIZERS}:DeepSpeedCPUAdagrad"}
_CPU_LION = {"DeepSpeedCPULion": f"{_OPTIMIZERS}:DeepSpeedCPULion"}
_FUSED_LION = {"FusedLion": f"{_OPTIMIZERS}:FusedLion"}
_FUSED_LAMB = {"FusedLamb": f"{_OPTIMIZERS}:FusedLamb"}
_ZENFLOW_NAMES = ("ZenFlowCPUAdam", "ZenFlowSelectiveAdamW", "ZenFlowSelectiveAdamW_stage3")

_BUILT = (
    "CPUAdamBuilder",
    "CPUAdagradBuilder",
    "CPULionBuilder",
    "FusedAdamBuilder",
    "FusedLambBuilder",
    "FusedLionBuilder",
    "FPQuantizerBuilder",
)
_UNBUILT = (
    "CCLCommBuilder",
    "DeepCompileBuilder",
    "EvoformerAttnBuilder",
    "FlashAttentionBuilder",
    "InferenceBuilder",
    "InferenceCoreBuilder",
    "InferenceCutlassBuilder",
    "NotImplementedBuilder",
    "PackbitsBuilder",
    "QuantizerBuilder",
    "RaggedOpsBuilder",
    "RaggedUtilsBuilder",
    "RandomLTDBuilder",
    "ShareMemCommBuilder",
    "SparseAttnBuilder",
    "SpatialInferenceBuilder",
    "StochasticTransformerBuilder",
    "TorchCPUOpBuilder",
    "TransformerBuilder",
    "UtilsBuilder",
    "builder_closure",
    "get_default_compute_capabilities",
)
_TRANSFORMER_NAMES = (
    "DeepSpeedInferenceConfig",
    "DeepSpeedMoEInference",
    "DeepSpeedMoEInferenceConfig",
    "DeepSpeedTransformerConfig",
    "DeepSpeedTransformerInference",
    "DeepSpeedTransformerLayer",
)
_SPARSITY_CONFIGS = (
    "BSLongformerSparsityConfig",
    "BigBirdSparsityConfig",
    "DenseSparsityConfig",
    "FixedSparsityConfig",
    "LocalSlidingWindowSparsityConfig",
    "SparsityConfig",
    "VariableSparsityConfig",
)
_SPARSE_NAMES = ("BertSparseSelfAttention", "SparseAttentionUtils", "SparseSelfAttention")

_NOTHING = "has no counterpart; nothing here is built at run time"
_OP_BUILDER = {
    **_BASE,
    **{name: f"{_BUILDERS}:{name}" for name in _BUILT},
    **{name: f"!{name.removesuffix('Builder')} {_NOTHING}" for name in _UNBUILT},
}

NAMES: dict[str, dict[str, str]] = {
    "deepspeed.ops.adam": _CPU_ADAM | _FUSED_ADAM | dict.fromkeys(_ZENFLOW_NAMES, _ZENFLOW),
    "deepspeed.ops.adam.cpu_adam": _CPU_ADAM,
    "deepspeed.ops.adam.fused_adam": _FUSED_ADAM,
    "deepspeed.ops.adagrad": _CPU_ADAGRAD,
    "deepspeed.ops.adagrad.cpu_adagrad": _CPU_ADAGRAD,
    "deepspeed.ops.lion": _CPU_LION | _FUSED_LION,
    "deepspeed.ops.lion.cpu_lion": _CPU_LION,
    "deepspeed.ops.lion.fused_lion": _FUSED_LION,
    "deepspeed.ops.lamb": _FUSED_LAMB,
    "deepspeed.ops.lamb.fused_lamb": _FUSED_LAMB,
    "deepspeed.ops.fp_quantizer": {"FP_Quantize": "ds_kernels.fp_quantizer:FP_Quantize"},
    "deepspeed.ops.transformer": dict.fromkeys(_TRANSFORMER_NAMES, _TRANSFORMER),
    "deepspeed.ops.sparse_attention": dict.fromkeys((*_SPARSE_NAMES, *_SPARSITY_CONFIGS), _SPARSE),
    "deepspeed.ops.sparse_attention.sparsity_config": dict.fromkeys(_SPARSITY_CONFIGS, _SPARSE),
    "deepspeed.ops.op_builder": _OP_BUILDER,
    "deepspeed.ops.op_builder.builder": _BASE,
    "deepspeed.ops.op_builder.cpu_adam": {"CPUAdamBuilder": f"{_BUILDERS}:CPUAdamBuilder"},
    "deepspeed.ops.op_builder.fused_adam": {"FusedAdamBuilder": f"{_BUILDERS}:FusedAdamBuilder"},
}
