"""Where the names around the configuration are found under their old import paths."""

from __future__ import annotations

_CONFIG = {
    "DeepSpeedConfig": "deepspeed.config.legacy:DeepSpeedConfig",
    "DeepSpeedConfigError": "ds_core.errors:ConfigError",
}

_GETTERS = (
    "get_checkpoint_params",
    "get_communication_data_type",
    "get_data_types_params",
    "get_dataloader_drop_last",
    "get_disable_allgather",
    "get_dump_state",
    "get_gradient_accumulation_steps",
    "get_gradient_allreduce_op",
    "get_gradient_clipping",
    "get_gradient_predivide_factor",
    "get_graph_harvesting",
    "get_log_level",
    "get_managed_gradient_accumulation",
    "get_memory_breakdown",
    "get_optimizer_gradient_clipping",
    "get_optimizer_legacy_fusion",
    "get_optimizer_name",
    "get_optimizer_params",
    "get_pld_enabled",
    "get_prescale_gradients",
    "get_scheduler_name",
    "get_scheduler_params",
    "get_sparse_gradients_enabled",
    "get_steps_per_print",
    "get_torch_autocast_enabled",
    "get_train_batch_size",
    "get_train_micro_batch_size_per_gpu",
    "get_wall_clock_breakdown",
    "get_zero_allow_untested_optimizer",
    "get_zero_force_ds_cpu_optimizer",
)

_UNSERVED = (
    "get_amp_enabled",
    "get_amp_params",
    "get_checkpoint_parallel_write_pipeline",
    "get_checkpoint_tag_validation_mode",
    "get_eigenvalue_config",
    "get_eigenvalue_enabled",
    "get_eigenvalue_gas_boundary_resolution",
    "get_eigenvalue_layer_name",
    "get_eigenvalue_layer_num",
    "get_eigenvalue_max_iter",
    "get_eigenvalue_stability",
    "get_eigenvalue_tol",
    "get_eigenvalue_verbose",
    "get_expert_data_topo_config",
    "get_expert_parallel_config",
    "get_hybrid_engine_config",
    "get_lower_precision_safe_modules",
    "get_pipeline_config",
    "get_pld_params",
    "get_sparse_attention",
    "get_sparse_attention_mode",
    "get_sparse_attention_type",
    "get_sparse_bigbird_config",
    "get_sparse_bslongformer_config",
    "get_sparse_dense_config",
    "get_sparse_fixed_config",
    "get_sparse_variable_config",
    "get_torch_autocast_dtype",
    "HybridEngineConfig",
)

_REFUSAL = "!reads one key of the raw JSON; use deepspeed.config.load_config(...).section(name)"

_TUNING = {
    name: f"deepspeed.arguments:{name}"
    for name in (
        "add_tuning_arguments",
        "get_config_from_args",
        "get_lr_from_config",
        "override_1cycle_params",
        "override_lr_range_test_params",
        "override_params",
        "override_warmupLR_params",
        "parse_arguments",
    )
}

NAMES: dict[str, dict[str, str]] = {
    "deepspeed": {
        **_CONFIG,
        "add_config_arguments": "deepspeed.arguments:add_config_arguments",
        "add_tuning_arguments": "deepspeed.arguments:add_tuning_arguments",
        "load_ds_config": "deepspeed.config.legacy:load_ds_config",
    },
    "deepspeed.runtime.config": {
        **_CONFIG,
        **{name: f"deepspeed.config.getters:{name}" for name in _GETTERS},
        **dict.fromkeys(_UNSERVED, _REFUSAL),
        "load_ds_config": "deepspeed.config.legacy:load_ds_config",
        "DeepSpeedConfigWriter": "deepspeed.config.getters:DeepSpeedConfigWriter",
        "DtypeEnum": "deepspeed.config.getters:DtypeEnum",
    },
    "deepspeed.runtime.lr_schedules": _TUNING,
    "deepspeed.runtime.precision_config": {
        "DeepSpeedBF16Config": "ds_core.sections:BF16Section",
        "DeepSpeedFP16Config": "ds_core.sections:FP16Section",
    },
}
