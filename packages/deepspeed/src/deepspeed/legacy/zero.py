"""Where ZeRO is found under its old import paths."""

from __future__ import annotations

_HERE = "deepspeed.adapters.zero"
_SAFE = "ds_zero.safe"
_LEAVES = "ds_zero.leaves"
_ESTIMATE = "ds_zero.estimate"
_TABLE = "!the step's inner tables are no interface here; use deepspeed.utils.safe_get_full_*"
_OPTIMIZER = "!made by deepspeed.initialize; engine.optimizer has param_groups, state and step"
_MICS = "!MiCS is not offered: it would need sharding within sub-groups of ranks"
_ZENFLOW = "!ZenFlow is not offered: it would need importance-aware asynchronous offload"

_safe_names = {
    name: f"{_SAFE}:{name}"
    for name in (
        "safe_get_full_fp32_param",
        "safe_get_full_grad",
        "safe_get_full_optimizer_state",
        "safe_get_local_fp32_param",
        "safe_get_local_grad",
        "safe_get_local_optimizer_state",
        "safe_set_full_fp32_param",
        "safe_set_full_grad",
        "safe_set_full_optimizer_state",
        "safe_set_local_fp32_param",
        "safe_set_local_grad",
        "safe_set_local_optimizer_state",
        "safe_update_full_grad_vectorized",
    )
}
_leaf_names = {
    name: f"{_LEAVES}:{name}"
    for name in (
        "get_z3_leaf_modules",
        "set_z3_leaf_module",
        "set_z3_leaf_modules",
        "set_z3_leaf_modules_by_name",
        "set_z3_leaf_modules_by_suffix",
        "unset_z3_leaf_modules",
        "z3_leaf_module",
        "z3_leaf_parameter",
    )
}
_fragments = dict.fromkeys(
    (
        "fragment_address",
        "get_full_hp_grad",
        "get_full_hp_param",
        "get_hp_fragment_mapping",
        "lazy_init_hp_params_optimizer_state",
        "link_hp_params",
        "map_to_flat_opt_states",
        "set_full_hp_grad",
        "set_full_hp_param",
        "tensor_fragment",
    ),
    _TABLE,
)
_zero3 = {
    name: f"{_ESTIMATE}:{name}"
    for name in (
        "estimate_zero3_model_states_mem_needs",
        "estimate_zero3_model_states_mem_needs_all_cold",
        "estimate_zero3_model_states_mem_needs_all_live",
    )
}
_zero2 = {
    name: f"{_ESTIMATE}:{name}"
    for name in (
        "estimate_zero2_model_states_mem_needs",
        "estimate_zero2_model_states_mem_needs_all_cold",
        "estimate_zero2_model_states_mem_needs_all_live",
    )
}
_contexts = {
    name: f"{_HERE}:{name}"
    for name in (
        "GatheredParameters",
        "Init",
        "ZeroParamStatus",
        "register_external_parameter",
        "unregister_external_parameter",
    )
}
_tiling = {
    name: f"ds_zero.tiling:{name}"
    for name in ("TiledLinear", "TiledLinearReturnBias", "split_tensor_along_last_dim")
}
_offload = {
    name: f"{_HERE}:{name}"
    for name in (
        "DeepSpeedZeroOffloadOptimizerConfig",
        "DeepSpeedZeroOffloadParamConfig",
        "OffloadDeviceEnum",
        "OffloadStateTypeEnum",
    )
}
_mics = dict.fromkeys(
    (
        "MiCS_AllGatherCoalescedHandle",
        "MiCS_Init",
        "MiCS_Offload",
        "MiCS_Optimizer",
        "has_hierarchical_all_gather_groups",
    ),
    _MICS,
)
_consolidate = {
    name: f"ds_zero.consolidate:{name}"
    for name in (
        "convert_zero_checkpoint_to_fp32_state_dict",
        "get_fp32_state_dict_from_zero_checkpoint",
        "load_state_dict_from_zero_checkpoint",
    )
}

NAMES: dict[str, dict[str, str] | str] = {
    "deepspeed.zero": {**_contexts, **_tiling, "MiCS_Init": _MICS},
    "deepspeed.runtime.zero": {**_contexts, **_tiling, "MiCS_Init": _MICS},
    "deepspeed.runtime.zero.partition_parameters": _HERE,
    "deepspeed.runtime.zero.config": {
        "DeepSpeedZeroConfig": f"{_HERE}:DeepSpeedZeroConfig",
        "ZeroStageEnum": f"{_HERE}:ZeroStageEnum",
        "get_zero_config": f"{_HERE}:get_zero_config",
        "DeepSpeedZeroOffloadParamConfig": f"{_HERE}:DeepSpeedZeroOffloadParamConfig",
        "DeepSpeedZeroOffloadOptimizerConfig": f"{_HERE}:DeepSpeedZeroOffloadOptimizerConfig",
        "OffloadDeviceEnum": f"{_HERE}:OffloadDeviceEnum",
        "ZenFlowConfig": _ZENFLOW,
    },
    "deepspeed.runtime.zero.offload_config": _offload,
    "deepspeed.runtime.zero.leaf_module_config": {
        "DeepSpeedZeroLeafModuleConfig": "ds_zero.sections:LeafModuleSection",
    },
    "deepspeed.runtime.zero.utils": {"is_zero_param": f"{_HERE}:is_zero_param"},
    "deepspeed.runtime.zero.tiling": _tiling,
    "deepspeed.runtime.zero.mics": _mics,
    "deepspeed.runtime.zero.stage3": {
        "DeepSpeedZeroOptimizer_Stage3": _OPTIMIZER,
        "IPGBucketZ3": _TABLE,
        "model_to_params": f"{_HERE}:model_to_params",
        **_zero3,
    },
    "deepspeed.runtime.zero.stage_1_and_2": {
        "DeepSpeedZeroOptimizer": _OPTIMIZER,
        "IPGBucket": _TABLE,
        "model_to_params": f"{_HERE}:model_to_params",
        **_zero2,
    },
    "deepspeed.utils": {**_safe_names, **_leaf_names, **_fragments},
    "deepspeed.utils.tensor_fragment": {**_safe_names, **_fragments},
    "deepspeed.utils.z3_leaf_module": _leaf_names,
    "deepspeed.utils.zero_to_fp32": {
        **_consolidate,
        "get_model_state_file": f"{_HERE}:get_model_state_file",
        "get_model_state_files": f"{_HERE}:get_model_state_files",
        "get_optim_files": f"{_HERE}:get_optim_files",
        "main": "ds_zero.consolidate:main",
    },
    "deepspeed.checkpoint.ds_to_universal": {"main": "ds_zero.universal:main"},
}
