"""The rest of the old interface: small names that have a home here, and names that have none."""

from __future__ import annotations

from collections.abc import Iterable

_SMALL = "deepspeed.adapters.small"
_GROUPS = "deepspeed.adapters.groups"
_COMM_LOG = "deepspeed.comm.log"

_EXPERTS = "!expert parallelism (mixture of experts) is not part of this release"
_TENSOR_PARALLEL = "!tensor parallelism is not part of this release; pass mpu to initialize()"
_SEQUENCE = "!sequence parallelism is not part of this release; see torch's context_parallel"
_COMPRESSION = "!compression is not part of this release; quantise or prune with torch.ao"
_ELASTIC = "!not needed: every checkpoint loads at any world size; choose batch sizes in the JSON"
_TUNING = "!autotuning is not part of this release; `ds_config check` estimates memory"
_LINEAR = "!OptimizedLinear is not part of this release; peft's LoRA works at every stage"
_ONEBIT = "!1-bit optimizers are not part of this release; communication_data_type halves messages"
_EIGENVALUE = "!curvature estimates are not part of this release"
_INSIDE = "!a step inside the old engine; nothing here corresponds to it"
_PLACEMENT = "!init_distributed() finds ranks and addresses by itself; see ds_report"
_MESSAGES = "!messages are asynchronous objects of ds_core.comm.Communicator"
_UNIVERSAL = "!a step inside the old converter; see ds_zero.universal, ds_to_universal"
_RESHAPE = "!checkpoints here load at any layout; the peer's are read by engine.load_checkpoint()"
_CONSOLIDATE = "!a step inside the old script; use get_fp32_state_dict_from_zero_checkpoint()"
_SCALER = "!built from the fp16 section; see ds_core.precision for the objects"
_GRAPHS = "!graphs are torch's: torch.cuda.graph, torch.compile(mode='reduce-overhead')"
_MPU = "!ranks of model parallelism are the mpu's: pass it to initialize()"
_REPORT = "!part of the printed report; run ds_report"
_BUILD = "!extensions are built ahead of time into wheels"


def _refuse(reason: str, names: str | Iterable[str]) -> dict[str, str]:
    return dict.fromkeys(names.split() if isinstance(names, str) else names, reason)


def _in(module: str, names: str) -> dict[str, str]:
    return {name: f"{module}:{name}" for name in names.split()}


_COMM = {
    **_in(
        _COMM_LOG,
        "configure get_comm_operation_count get_logged_comm_ops has_comm_data log_summary "
        "reset_log",
    ),
    **_refuse(
        _PLACEMENT,
        "in_aml in_aws_sm in_dlts mpi_discovery patch_aml_env_for_torch_nccl_backend "
        "patch_aws_sm_env_for_torch_nccl_backend",
    ),
    **_refuse(
        "!back ends are torch's: init_distributed(dist_backend=...)",
        "enable_symm_mem_for_group init_deepspeed_backend set_backend",
    ),
    "timed_op": "!collectives are timed by observers: configure(enabled=True)",
}
_ULYSSES = (
    "AutogradComputeMLP SequenceTiledCompute TiledFusedLogitsLoss TiledLoss TiledMLP "
    "UlyssesSPAttentionHF UlyssesSPDataLoaderAdapter UlyssesSPFwdLossBwdWithLogits "
    "sequence_tiled_compute"
)
_ELASTICITY = "compute_elastic_config elasticity_enabled ensure_immutable_elastic_config"

NAMES: dict[str, dict[str, str] | str] = {
    "deepspeed": {
        **_in(_SMALL, "is_compile_supported"),
        **_refuse(_TENSOR_PARALLEL, "merge_tp_model_init_into_config record_tp_model_init_args"),
        "set_optimizer_flags": _INSIDE,
    },
    "deepspeed.comm": _COMM,
    "deepspeed.comm.facade": _COMM,
    "deepspeed.accelerator": {
        "is_current_accelerator_supported": "ds_core.device:is_available",
        "set_accelerator": "!the accelerator is what torch reports; force one with DS_ACCELERATOR",
    },
    "deepspeed.runtime.engine": {
        **_in(_SMALL, "autocast_if_enabled"),
        "split_half_float_double_sparse": _INSIDE,
        "EngineTimers": "!phases are timed by the wall_clock_breakdown section",
    },
    "deepspeed.runtime.utils": {
        **_in(
            _SMALL,
            "get_global_norm_of_tensors get_inactive_params get_only_unique_item "
            "get_tensor_bytes noop_decorator prefix_sum_inc",
        ),
        "noop_context": "contextlib:nullcontext",
        "is_model_parallel_parameter": "ds_core.reduction:is_model_parallel",
        "copy_to_device": "deepspeed.adapters.tensors:move_to_device",
        **_refuse(
            _INSIDE,
            "CheckOverflow OutputBackwardHookManager TLinear align_dense_tensors "
            "all_gather_dp_groups all_gather_into_tensor_dp_groups call_to_str "
            "check_internal_apis_for_count_used_parameters clip_tensors_by_global_norm "
            "compare_tensors_in_structures count_used_parameters_in_backward "
            "filter_empty_parameters get_checkpoint_folder_size get_flattened_grad_norm "
            "get_grad_zeros get_ma_status get_weight_norm is_transformers_cache "
            "mask_nan_or_inf_with_val_inplace maybe_loss_for_backward offload_adam_states "
            "register_output_backward_hooks reload_adam_states",
        ),
        **_refuse(_EXPERTS, "get_norm_with_moe_layers get_norm_with_moe_layers_fast"),
        "PartitionedTensor": "!shards are plain slices: see ds_zero.plan",
        "graph_process": _GRAPHS,
    },
    "deepspeed.runtime.eigenvalue": {"Eigenvalue": _EIGENVALUE},
    "deepspeed.runtime.fp16.loss_scaler": {
        **_in(_SMALL, "to_python_float"),
        **_refuse(
            _SCALER,
            "CreateLossScaler LossScaleConfig LossScaleProfile LossScaleProfileDefaults "
            "LossScalerBase",
        ),
    },
    "deepspeed.runtime.fp16.onebit": _refuse(_ONEBIT, "OnebitAdam OnebitLamb ZeroOneAdam"),
    "deepspeed.runtime.fp16.onebit.adam": {"OnebitAdam": _ONEBIT},
    "deepspeed.runtime.fp16.onebit.lamb": {"OnebitLamb": _ONEBIT},
    "deepspeed.runtime.fp16.onebit.zoadam": {"ZeroOneAdam": _ONEBIT},
    "deepspeed.adapters.zero": {
        **_refuse(
            _MESSAGES,
            "AllGatherCoalescedHandle AllGatherHandle AllReduceCoalescedHandle "
            "MultipleAllGatherHandles NoGatherCoalescedHandle NoGatherHandle",
        ),
        **_refuse(
            _INSIDE,
            "DeepSpeedTensorOverride InsertPostInitMethodToModuleSubClasses debug_rank0 "
            "get_allgather_dtype get_new_tensor_fn_for_dtype print_rank_0 restore_init_context "
            "shutdown_init_context",
        ),
        **_refuse(
            "!quantised weights (ZeRO++) are not part of this release",
            "CUDAQuantizer QuantizationInfo",
        ),
    },
    "deepspeed.runtime.zero.stage3": _refuse(
        _INSIDE, "input isclose lcm move_to_cpu print_rank_0 unwrap_model_for_generation"
    ),
    "deepspeed.runtime.zero.stage_1_and_2": _refuse(
        _INSIDE,
        "get_alignment_padding input isclose lcm print_rank_msg split_half_float_double",
    ),
    "deepspeed.ops.op_builder": {"PinMemoryBuilder": _BUILD},
    "deepspeed.utils": {
        **_in(_SMALL, "log_dist_once"),
        **_in(_GROUPS, "bwc_pipeline_parallel_world_size bwc_tensor_model_parallel_world_size"),
        "OnDevice": "ds_zero.on_device:OnDevice",
        "DeprecatedException": "builtins:DeprecationWarning",
        "get_caller_func": _INSIDE,
        "get_numactl_cmd": "!the launcher binds cores itself: deepspeed --bind_cores_to_rank",
        **_refuse(
            _MPU,
            "get_tensor_model_parallel_src_rank set_tensor_model_parallel_rank "
            "set_tensor_model_parallel_world_size",
        ),
    },
    "deepspeed.utils.groups": {
        **_refuse(
            _MPU,
            "get_tensor_model_parallel_src_rank set_tensor_model_parallel_rank "
            "set_tensor_model_parallel_world_size",
        ),
        **_refuse(
            _EXPERTS,
            "_get_expert_parallel_group _get_expert_parallel_rank _get_expert_parallel_world_size "
            "_get_expert_data_parallel_group _get_max_expert_size_name",
        ),
        "_get_sequence_data_parallel_group": _SEQUENCE,
    },
    "deepspeed.utils.logging": {
        **_in(_SMALL, "log_dist_once"),
        **_refuse(
            "!logging is Python's: logging.getLogger('deepspeed')",
            "LoggerFactory get_dist_msg get_log_level_from_string print_configuration",
        ),
    },
    "deepspeed.utils.zero_to_fp32": _refuse(
        _CONSOLIDATE,
        "GatheredTensor atoi get_checkpoint_files natural_keys parse_model_states "
        "parse_optim_states to_torch_tensor zero3_partitioned_param_info zero_model_state",
    ),
    "deepspeed.checkpoint": _refuse(
        _RESHAPE,
        "DeepSpeedCheckpoint SubparamShape ZeROCheckpoint enable_universal_checkpoint "
        "get_layer_ckpt_name_for_rank get_model_3d_descriptor get_model_ckpt_name_for_rank "
        "get_zero_ckpt_name_for_rank merge_state model_3d_desc reshape_meg_2d_parallel",
    ),
    "deepspeed.checkpoint.constants": "deepspeed.adapters.checkpoint_constants",
    "deepspeed.checkpoint.deepspeed_checkpoint": {"DeepSpeedCheckpoint": _RESHAPE},
    "deepspeed.checkpoint.ds_to_universal": _refuse(
        _UNIVERSAL,
        "atoi dp_index_to_str dump_param_fragment extract_zero_shards "
        "extract_zero_shards_stage3 merge_tp_slices merge_zero3_slices natural_keys "
        "parse_arguments",
    ),
    "deepspeed.moe.sharded_moe": _refuse(
        _EXPERTS,
        "MOELayer TopKGate einsum gumbel_rsample multiplicative_jitter top1gating top2gating "
        "topkgating",
    ),
    "deepspeed.moe.utils": _refuse(
        _EXPERTS,
        "configure_moe_param_groups has_moe_layers is_moe_param_group "
        "split_params_grads_into_shared_and_expert_params "
        "split_params_into_shared_and_expert_params",
    ),
    "deepspeed.moe.experts": {"Experts": _EXPERTS},
    "deepspeed.compression": _refuse(_COMPRESSION, "init_compression redundancy_clean"),
    "deepspeed.compression.compress": _refuse(
        _COMPRESSION,
        "check_deepspeed_config get_compress_methods get_module_name init_compression "
        "redundancy_clean student_initialization",
    ),
    "deepspeed.compression.scheduler": {"compression_scheduler": _COMPRESSION},
    "deepspeed.elasticity": _refuse(
        _ELASTIC, f"DSElasticAgent {_ELASTICITY} is_torch_elastic_compatible"
    ),
    "deepspeed.elasticity.elasticity": _refuse(
        _ELASTIC, f"{_ELASTICITY} get_best_candidates get_candidate_batch_sizes get_valid_gpus"
    ),
    "deepspeed.autotuning.autotuner": {"Autotuner": _TUNING},
    "deepspeed.launcher.runner": {
        "parse_num_nodes": "!elastic ranges of nodes are not offered: --num_nodes takes a number",
    },
    "deepspeed.linear": _refuse(
        _LINEAR, "Init LoRAConfig OptimizedLinear QuantizationConfig init_lora"
    ),
    "deepspeed.sequence.layer": _refuse(
        _SEQUENCE,
        "DistributedAttention apply_rotary_pos_emb post_all2all pre_all2all_fun "
        "single_all_to_all uneven_heads_all2all",
    ),
    "deepspeed.sequence.fpdt_layer": _refuse(
        _SEQUENCE, "FPDT_Attention FPDT_FFN FPDT_InputConstruct FPDT_LogitsLoss"
    ),
    "deepspeed.runtime.sequence_parallel.ulysses_sp": _refuse(_SEQUENCE, _ULYSSES),
    "deepspeed.runtime.tensor_parallel": _refuse(
        _TENSOR_PARALLEL, "AUTOTP_MODE TpTrainingManager get_tensor_parallel_config"
    ),
    "deepspeed.module_inject.layers": {"GatherReplacedLayerParams": _TENSOR_PARALLEL},
    "deepspeed.env_report": _refuse(
        _REPORT,
        "get_shm_size human_readable_size installed_cann_path installed_cann_version "
        "nvcc_version parse_arguments",
    ),
}
"""Legacy module -> name -> where it is now; `!` is a refusal."""
