"""Where the engine, collectives, devices, logging and small helpers are found."""

from __future__ import annotations

_RUNTIME_UTILS = (
    "DummyOptim",
    "clip_grad_norm_",
    "empty_cache",
    "ensure_directory_exists",
    "get_global_norm",
    "has_inf_or_nan",
    "move_to_device",
    "set_random_seed",
)

_GROUPS = (
    "get_data_parallel_group",
    "get_data_parallel_rank",
    "get_data_parallel_world_size",
    "get_model_parallel_group",
    "get_model_parallel_rank",
    "get_model_parallel_world_size",
    "get_tensor_model_parallel_group",
    "get_tensor_model_parallel_rank",
    "get_tensor_model_parallel_world_size",
)

_SEQUENCE_GROUPS = {
    f"_{name}": f"deepspeed.adapters.groups:{name}"
    for name in (
        "get_data_parallel_group",
        "get_data_parallel_rank",
        "get_data_parallel_world_size",
        "get_model_parallel_group",
        "get_model_parallel_rank",
        "get_model_parallel_world_size",
        "get_sequence_parallel_group",
        "get_sequence_parallel_rank",
        "get_sequence_parallel_world_size",
    )
}

_LOGGING = (
    "get_current_level",
    "log_dist",
    "logger",
    "print_dist",
    "print_json_dist",
    "set_log_level_from_string",
    "should_log_le",
)

_GROUP_NAMES = {name: f"deepspeed.adapters.groups:{name}" for name in (*_GROUPS, "initialize")}
_EXPERTS = "!expert parallelism (mixture of experts) is not part of this release"
_TENSOR_PARALLEL = (
    "!automatic tensor parallelism is not part of this release; parallelise the model yourself "
    "and pass mpu to initialize()"
)
_INFERENCE = "!inference engines are not part of this release; call the model under torch.no_grad()"
_KERNEL_LAYER = (
    "!the fused transformer layer is not part of this release; "
    "torch.nn.TransformerEncoderLayer has fused attention"
)

NAMES: dict[str, dict[str, str] | str] = {
    "deepspeed": {
        "OnDevice": "ds_zero.on_device:OnDevice",
        "log_dist": "deepspeed.logs:log_dist",
        "logger": "deepspeed.logs:logger",
        "dist": "deepspeed.comm",
        "InferenceEngine": _INFERENCE,
        "DeepSpeedInferenceConfig": _INFERENCE,
        "init_inference": _INFERENCE,
        "default_inference_config": _INFERENCE,
        "DeepSpeedHybridEngine": "!the hybrid engine is not part of this release; generate with "
        "engine.module inside zero.GatheredParameters",
        "DeepSpeedTransformerLayer": _KERNEL_LAYER,
        "DeepSpeedTransformerConfig": _KERNEL_LAYER,
        "replace_transformer_layer": _KERNEL_LAYER,
        "revert_transformer_layer": _KERNEL_LAYER,
        "tp_model_init": _TENSOR_PARALLEL,
        "set_autotp_mode": _TENSOR_PARALLEL,
    },
    "deepspeed.comm.comm": "deepspeed.comm.facade",
    "deepspeed.comm.torch": "deepspeed.comm.facade",
    "deepspeed.accelerator.real_accelerator": {
        "get_accelerator": "deepspeed.accelerator:get_accelerator"
    },
    "deepspeed.accelerator.abstract_accelerator": {
        "DeepSpeedAccelerator": "deepspeed.accelerator:DeepSpeedAccelerator"
    },
    "deepspeed.constants": {
        "TORCH_DISTRIBUTED_DEFAULT_PORT": "deepspeed.distributed:DEFAULT_PORT",
        "default_pg_timeout": "deepspeed.distributed:DEFAULT_TIMEOUT",
    },
    "deepspeed.runtime.engine": {
        "DeepSpeedEngine": "deepspeed.engine:DeepSpeedEngine",
        "DeepSpeedOptimizerCallable": "ds_core.optimizers:MakeOptimizer",
        "MoE": _EXPERTS,
    },
    "deepspeed.runtime.base_optimizer": {
        "DeepSpeedOptimizer": "deepspeed.optimizer_face:DeepSpeedOptimizer",
        "ZeROOptimizer": "deepspeed.optimizer_face:DeepSpeedOptimizer",
    },
    "deepspeed.runtime": {
        "DeepSpeedOptimizer": "deepspeed.optimizer_face:DeepSpeedOptimizer",
        "ZeROOptimizer": "deepspeed.optimizer_face:DeepSpeedOptimizer",
    },
    "deepspeed.runtime.bf16_optimizer": {
        "BF16_Optimizer": "deepspeed.optimizer_face:DeepSpeedOptimizer"
    },
    "deepspeed.runtime.fp16.fused_optimizer": {
        "FP16_Optimizer": "deepspeed.optimizer_face:DeepSpeedOptimizer"
    },
    "deepspeed.runtime.fp16.unfused_optimizer": {
        "FP16_UnfusedOptimizer": "deepspeed.optimizer_face:DeepSpeedOptimizer"
    },
    "deepspeed.runtime.fp16.loss_scaler": {
        "DynamicLossScaler": "ds_core.precision:DynamicLossScaler",
        "LossScaler": "ds_core.precision:StaticLossScaler",
    },
    "deepspeed.runtime.dataloader": {
        "DeepSpeedDataLoader": "deepspeed.dataloader:DeepSpeedDataLoader",
        "RepeatingLoader": "deepspeed.dataloader:RepeatingLoader",
    },
    "deepspeed.runtime.utils": {
        **{name: f"deepspeed.adapters.tensors:{name}" for name in _RUNTIME_UTILS},
        **{
            name: f"deepspeed.adapters.groups:{name}"
            for name in ("bwc_tensor_model_parallel_world_size", "bwc_pipeline_parallel_world_size")
        },
    },
    "deepspeed.checkpoint.utils": {
        "clone_tensors_for_torch_save": "deepspeed.adapters.tensors:clone_tensors_for_torch_save"
    },
    "deepspeed.utils": {
        **{
            name: f"deepspeed.logs:{name}"
            for name in ("log_dist", "logger", "set_log_level_from_string")
        },
        **_GROUP_NAMES,
        "RepeatingLoader": "deepspeed.dataloader:RepeatingLoader",
        "get_accelerator": "deepspeed.accelerator:get_accelerator",
        "instrument_w_nvtx": "deepspeed.adapters.tensors:instrument_w_nvtx",
        "is_initialized": "deepspeed.comm.facade:is_initialized",
    },
    "deepspeed.utils.logging": {name: f"deepspeed.logs:{name}" for name in _LOGGING},
    "deepspeed.utils.groups": {**_GROUP_NAMES, **_SEQUENCE_GROUPS},
    "deepspeed.utils.nvtx": {"instrument_w_nvtx": "deepspeed.adapters.tensors:instrument_w_nvtx"},
    "deepspeed.ops.transformer": {
        "DeepSpeedTransformerLayer": _KERNEL_LAYER,
        "DeepSpeedTransformerConfig": _KERNEL_LAYER,
    },
    "deepspeed.module_inject": {"replace_transformer_layer": _KERNEL_LAYER},
    "deepspeed.moe.layer": {"MoE": _EXPERTS},
    "deepspeed.moe.utils": {
        "is_moe_param": _EXPERTS,
        "split_params_into_different_moe_groups_for_optimizer": _EXPERTS,
    },
}
"""Legacy module -> name -> where it is now; `!` is a refusal."""
