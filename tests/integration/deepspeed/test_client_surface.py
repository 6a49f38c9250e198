"""What the sources of real clients name: every import, and every attribute they reach for.

Releases read: transformers 5.24, accelerate 1.15, lightning 2.6, peft 0.21, trl 1.16, and gpt-neox,
OpenRLHF, axolotl, LLaMA-Factory, ms-swift, Megatron-DeepSpeed, ArcticTraining, mmengine, xtuner.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import inspect
from datetime import timedelta

import pytest
import torch
from torch import nn

import deepspeed

IMPORTS = {
    "deepspeed": (
        "__version__ version initialize init_distributed tp_model_init init_inference "
        "add_config_arguments DeepSpeedEngine DeepSpeedConfig DeepSpeedTransformerLayer "
        "DeepSpeedTransformerConfig replace_transformer_layer zero comm checkpointing utils "
        "accelerator runtime ops pipe moe io checkpoint module_inject sequence launcher profiling "
        "env_report constants git_version_info PipelineModule OnDevice get_accelerator"
    ),
    "deepspeed.git_version_info": "version installed_ops torch_info accelerator_name git_hash",
    "deepspeed.comm": "is_initialized init_distributed get_rank get_world_size barrier",
    "deepspeed.zero": "Init GatheredParameters register_external_parameter",
    "deepspeed.runtime.base_optimizer": "DeepSpeedOptimizer ZeROOptimizer",
    "deepspeed.runtime.zero.partition_parameters": (
        "ZeroParamStatus _orig_torch_arange get_accelerator "
        "zero_wrapper_for_fp_tensor_constructor Init GatheredParameters"
    ),
    "deepspeed.utils": (
        "logger groups set_z3_leaf_modules safe_get_full_grad safe_get_full_fp32_param "
        "safe_get_full_optimizer_state RepeatingLoader zero_to_fp32 log_dist"
    ),
    "deepspeed.utils.logging": "logger print_dist log_dist",
    "deepspeed.utils.groups": (
        "_get_sequence_parallel_group _get_sequence_parallel_world_size "
        "_get_sequence_parallel_rank _get_expert_parallel_group _get_expert_data_parallel_group "
        "_get_expert_parallel_rank _get_expert_parallel_world_size _get_max_expert_size_name "
        "_get_data_parallel_group _get_data_parallel_world_size _get_data_parallel_rank "
        "_get_model_parallel_group _get_model_parallel_world_size "
        "_get_sequence_data_parallel_group"
    ),
    "deepspeed.utils.zero_to_fp32": (
        "get_fp32_state_dict_from_zero_checkpoint get_model_state_file get_optim_files "
        "get_model_state_files convert_zero_checkpoint_to_fp32_state_dict"
    ),
    "deepspeed.utils.timer": (
        "SynchronizedWallClockTimer ThroughputTimer FORWARD_MICRO_TIMER FORWARD_GLOBAL_TIMER "
        "BACKWARD_MICRO_TIMER BACKWARD_GLOBAL_TIMER STEP_MICRO_TIMER STEP_GLOBAL_TIMER"
    ),
    "deepspeed.accelerator": "get_accelerator",
    "deepspeed.checkpoint": "DeepSpeedCheckpoint constants",
    "deepspeed.checkpoint.utils": "clone_tensors_for_torch_save",
    "deepspeed.checkpoint.constants": (
        "OPTIMIZER_STATE_DICT ZERO_STAGE PARAM_SHAPES FROZEN_PARAM_SHAPES FROZEN_PARAM_FRAGMENTS "
        "BUFFER_NAMES DS_VERSION SINGLE_PARTITION_OF_FP32_GROUPS FP32_FLAT_GROUPS PARTITION_COUNT"
    ),
    "deepspeed.ops.adam": "DeepSpeedCPUAdam FusedAdam",
    "deepspeed.ops.adagrad": "DeepSpeedCPUAdagrad",
    "deepspeed.ops.lion": "DeepSpeedCPULion FusedLion",
    "deepspeed.ops.lamb": "FusedLamb",
    "deepspeed.ops.op_builder": "AsyncIOBuilder GDSBuilder CPUAdamBuilder FusedAdamBuilder",
    "deepspeed.ops.op_builder.builder": "OpBuilder",
    "deepspeed.ops.sparse_attention": "SparseSelfAttention FixedSparsityConfig",
    "deepspeed.runtime.lr_schedules": "VALID_LR_SCHEDULES WarmupLR WarmupDecayLR OneCycle",
    "deepspeed.runtime.utils": "move_to_device see_memory_usage PartitionedTensor set_random_seed",
    "deepspeed.runtime.config": "DeepSpeedConfig",
    "deepspeed.runtime.engine": "DeepSpeedEngine MoE autocast_if_enabled",
    "deepspeed.runtime.bf16_optimizer": "BF16_Optimizer",
    "deepspeed.runtime.fp16.fused_optimizer": "FP16_Optimizer",
    "deepspeed.runtime.fp16.unfused_optimizer": "FP16_UnfusedOptimizer",
    "deepspeed.runtime.fp16.loss_scaler": "LossScaler DynamicLossScaler",
    "deepspeed.runtime.fp16.onebit": "OnebitAdam OnebitLamb ZeroOneAdam",
    "deepspeed.runtime.zero.config": "ZeroStageEnum",
    "deepspeed.runtime.zero.offload_config": "OffloadDeviceEnum OffloadStateTypeEnum",
    "deepspeed.utils.tensor_fragment": "fragment_address",
    "deepspeed.runtime.sequence_parallel.ulysses_sp": (
        "UlyssesSPAttentionHF UlyssesSPDataLoaderAdapter TiledMLP TiledFusedLogitsLoss"
    ),
    "deepspeed.sequence.layer": "DistributedAttention",
    "deepspeed.sequence.fpdt_layer": "FPDT_Attention FPDT_FFN FPDT_LogitsLoss FPDT_InputConstruct",
    "deepspeed.module_inject.layers": "GatherReplacedLayerParams",
    "deepspeed.checkpointing": (
        "configure checkpoint reset is_configured get_cuda_rng_tracker "
        "model_parallel_cuda_manual_seed model_parallel_reconfigure_tp_seed "
        "_MODEL_PARALLEL_RNG_TRACKER_NAME _CUDA_RNG_STATE_TRACKER"
    ),
    "deepspeed.runtime.activation_checkpointing.checkpointing": (
        "configure checkpoint reset is_configured _CUDA_RNG_STATE_TRACKER"
    ),
    "deepspeed.pipe": "PipelineModule LayerSpec TiedLayerSpec",
    "deepspeed.runtime.pipe": "PipelineModule LayerSpec TiedLayerSpec ProcessTopology schedule",
    "deepspeed.runtime.pipe.topology": "PipeModelDataParallelTopology ProcessTopology",
    "deepspeed.runtime.pipe.engine": "PipelineEngine",
    "deepspeed.runtime.pipe.schedule": (
        "PipeInstruction TrainSchedule InferenceSchedule ForwardPass BackwardPass SendActivation "
        "RecvActivation SendGrad RecvGrad OptimizerStep ReduceGrads ReduceTiedGrads LoadMicroBatch"
    ),
    "deepspeed.launcher.runner": (
        "DEEPSPEED_ENVIRONMENT_NAME main EXPORT_ENVS fetch_hostfile parse_inclusion_exclusion "
        "DLTS_HOSTFILE"
    ),
    "deepspeed.moe.layer": "MoE",
    "deepspeed.moe.utils": "split_params_into_different_moe_groups_for_optimizer",
    "deepspeed.runtime.data_pipeline.curriculum_scheduler": "CurriculumScheduler",
    "deepspeed.runtime.data_pipeline.data_routing.helper": (
        "convert_to_random_ltd save_without_random_ltd remove_random_ltd_state_dict"
    ),
    "deepspeed.runtime.data_pipeline.data_sampling.data_analyzer": "DataAnalyzer",
    "deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset": "MMapIndexedDataset",
    "deepspeed.runtime.data_pipeline.data_sampling.variable_batch_size_and_lr": (
        "get_dataloader_and_lr_scheduler_for_variable_batch_size_deepspeed"
    ),
    "deepspeed.io": "MockFileWriter PyFileWriter FastFileWriter FastFileWriterConfig",
    "deepspeed.profiling.flops_profiler": "get_model_profile",
    "deepspeed.env_report": "main",
    "deepspeed.constants": "TORCH_DISTRIBUTED_DEFAULT_PORT CROSS_RANK CROSS_SIZE",
    "deepspeed.elasticity": "compute_elastic_config elasticity_enabled",
    "deepspeed.compression": "init_compression",
}

PATHS = [
    "utils.logging.logger.setLevel",
    "runtime.utils.set_random_seed",
    "runtime.zero.partition_parameters.Init",
    "runtime.engine.MoE",
    "module_inject.layers.GatherReplacedLayerParams",
    "checkpointing._CUDA_RNG_STATE_TRACKER",
    "checkpoint.utils.clone_tensors_for_torch_save",
    "utils.groups._get_sequence_parallel_group",
    "runtime.pipe.schedule.PipeInstruction",
    "moe.layer.MoE",
    "comm.is_initialized",
]

ENGINE = (
    "backward set_gradient_accumulation_boundary step get_global_grad_norm module optimizer "
    "lr_scheduler config device local_rank global_steps training_dataloader data_parallel_group "
    "save_checkpoint load_checkpoint _zero3_consolidated_16bit_state_dict "
    "_consolidated_16bit_state_dict zero_gather_16bit_weights_on_model_save "
    "zero_optimization_partition_weights zero_optimization_stage module_state_dict no_sync compile "
    "destroy gradient_accumulation_steps train_micro_batch_size_per_gpu train_batch_size "
    "set_train_batch_size is_gradient_accumulation_boundary fp16_enabled bfloat16_enabled "
    "optimizer_name was_step_applied steps_per_print wall_clock_breakdown reload_states "
    "empty_partition_cache random_ltd_enabled set_data_post_process_func "
    "_copy_recovery_script _change_recovery_script_permissions"
)
OPTIMIZER = "param_groups state state_dict load_state_dict defaults overflow optimizer"
OFFLOAD = "module forward_hooks backward_hooks _register_deepspeed_module param_coordinator"
PARAMETER = (
    "ds_id ds_status ds_shape ds_numel ds_tensor ds_active_sub_modules partition_numel all_gather "
    "partition"
)


@pytest.mark.parametrize("module", IMPORTS)
def test_every_name_can_be_imported(module):
    loaded = importlib.import_module(module)
    missing = [name for name in IMPORTS[module].split() if not hasattr(loaded, name)]
    assert missing == []


@pytest.mark.parametrize("path", PATHS)
def test_dotted_paths_resolve_after_import_deepspeed(path):
    found = deepspeed
    for part in path.split("."):
        found = getattr(found, part)
    assert found is not None


def make_engine(stage, **arguments):
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        **arguments,
    }
    return deepspeed.initialize(model=nn.Linear(3, 2), config=config)[0]


def absent(thing, names):
    return [name for name in names.split() if not hasattr(thing, name)]


ADAMW = {"type": "AdamW", "params": {"lr": 0.1}}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_engine_and_optimizer_have_what_clients_reach_for(stage):
    engine = make_engine(stage, optimizer=ADAMW)
    assert absent(engine, ENGINE) == []
    assert absent(engine.optimizer, OPTIMIZER) == []
    assert isinstance(engine.optimizer, deepspeed.runtime.base_optimizer.DeepSpeedOptimizer)
    assert "exclude_frozen_parameters" in inspect.signature(engine.save_checkpoint).parameters
    gathers = engine._zero3_consolidated_16bit_state_dict
    assert "exclude_frozen_parameters" in inspect.signature(gathers).parameters


@pytest.mark.parametrize("sections", [{"optimizer": ADAMW}, {}], ids=["trains", "evaluates"])
def test_stage_3_has_the_hooks_that_clients_take_off_and_put_back(sections):
    engine = make_engine(3, **sections)
    holder = getattr(engine.optimizer, "parameter_offload", engine.optimizer)
    assert absent(holder, OFFLOAD) == []
    assert absent(next(engine.module.parameters()), PARAMETER) == []
    assert list(engine.module.ds_external_parameters()) == []
    assert holder.param_coordinator.is_invalid_trace() in (True, False)


def test_states_are_moved_through_the_optimizer_and_back_through_the_engine():
    engine = make_engine(2, optimizer=ADAMW)
    engine.optimizer.offload_states(device="cpu")
    engine.reload_states()
    engine.backward(engine(torch.ones(1, 3)).sum())
    engine.step()


def test_autocast_of_an_engine_is_a_context():
    engine = make_engine(0, optimizer=ADAMW, torch_autocast={"enabled": True, "dtype": "bfloat16"})
    plain = make_engine(0, optimizer=ADAMW)
    for which, dtype in ((engine, torch.bfloat16), (plain, torch.float32)):
        with deepspeed.runtime.engine.autocast_if_enabled(which):
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


@pytest.mark.parametrize("least", ["0.9.3", "0.14.5", "0.16.4", "0.18.9", "0.19.5"])
def test_version_checks_of_clients_pass(least):
    from packaging.version import parse

    assert parse(importlib.metadata.version("deepspeed")) >= parse(least)
    assert parse(deepspeed.__version__) >= parse(least)


def test_versions_compare_as_text_where_a_client_does_so():
    assert deepspeed.version >= "0.16.4"


CALLS = {
    "accelerate": {"config_params": "CONFIG", "lr_scheduler": None, "mpu": None},
    "lightning": {
        "args": argparse.Namespace(device_rank=None),
        "config": "CONFIG",
        "optimizer": None,
        "lr_scheduler": None,
        "dist_init_required": False,
    },
    "OpenRLHF": {
        "args": {"local_rank": 0},
        "config": "CONFIG",
        "optimizer": None,
        "lr_scheduler": lambda optimizer: torch.optim.lr_scheduler.ConstantLR(optimizer),
        "dist_init_required": True,
    },
    "ms-swift": {"args": None, "config": "CONFIG"},
    "Megatron-DeepSpeed": {
        "args": argparse.Namespace(local_rank=0, deepspeed_config=None),
        "config": "CONFIG",
        "training_data": None,
        "mpu": None,
    },
}


@pytest.mark.parametrize("client", CALLS)
def test_initialize_takes_the_arguments_of(client):
    deepspeed.init_distributed("gloo", distributed_port=29500, timeout=timedelta(seconds=30))
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": ADAMW}
    arguments = {
        key: config if value == "CONFIG" else value for key, value in CALLS[client].items()
    }
    made = deepspeed.initialize(model=nn.Linear(3, 2), **arguments)
    assert len(made) == 4
    assert isinstance(made[0], deepspeed.DeepSpeedEngine)


def test_tensor_parallel_calls_are_refused_by_name():
    with pytest.raises(NotImplementedError, match="tensor parallelism is not part"):
        deepspeed.tp_model_init(model=nn.Linear(3, 2), tp_size=2, dtype=torch.float32)
