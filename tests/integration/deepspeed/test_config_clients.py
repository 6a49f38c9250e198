"""Configurations as client libraries and published examples write them, all packages installed."""

from __future__ import annotations

import base64
import json
import math

import pytest

from deepspeed.config import load_config, resolve_source

TRANSFORMERS = {
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "fp16": {
        "enabled": False,
        "loss_scale": 0,
        "loss_scale_window": 1000,
        "initial_scale_power": 16,
        "hysteresis": 2,
        "min_loss_scale": 1,
    },
    "bf16": {"enabled": True},
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": 5e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0},
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_min_lr": 0,
            "warmup_max_lr": 5e-5,
            "warmup_num_steps": 1,
            "total_num_steps": 100,
        },
    },
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "offload_param": {"device": "cpu", "pin_memory": True},
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 1e9,
        "reduce_bucket_size": 16777216,
        "stage3_prefetch_bucket_size": 15099494.4,
        "stage3_param_persistence_threshold": 40960,
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": True,
    },
    "steps_per_print": 2000,
    "wall_clock_breakdown": False,
    "zero_allow_untested_optimizer": True,
    "checkpoint": {"use_node_local_storage": False},
    "tensor_parallel": {"autotp_size": 0},
}

ACCELERATE = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 1,
    "zero_optimization": {
        "stage": 2,
        "offload_optimizer": {"device": "none", "nvme_path": None},
        "offload_param": {"device": "none", "nvme_path": None},
        "stage3_gather_16bit_weights_on_model_save": False,
    },
    "gradient_clipping": 1.0,
    "steps_per_print": math.inf,
    "fp16": {"enabled": True, "auto_cast": True},
    "communication_data_type": "fp32",
    "zero_force_ds_cpu_optimizer": False,
    "zero_allow_untested_optimizer": True,
}

LIGHTNING = {
    "activation_checkpointing": {
        "partition_activations": False,
        "cpu_checkpointing": False,
        "contiguous_memory_optimization": False,
        "synchronize_checkpoint_boundary": False,
    },
    "aio": {
        "block_size": 1048576,
        "queue_depth": 8,
        "single_submit": False,
        "overlap_events": True,
        "thread_count": 1,
    },
    "zero_allow_untested_optimizer": True,
    "zero_optimization": {
        "stage": 2,
        "contiguous_gradients": True,
        "overlap_comm": True,
        "allgather_partitions": True,
        "reduce_scatter": True,
        "allgather_bucket_size": 200_000_000,
        "reduce_bucket_size": 200_000_000,
        "sub_group_size": 1_000_000_000_000,
    },
    "gradient_accumulation_steps": 1,
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
}

TRL = {
    **ACCELERATE,
    "zero_optimization": {"stage": 3},
    "zero_optimization.reduce_bucket_size": 4096 * 4096,
    "zero_optimization.stage3_param_persistence_threshold": 10 * 4096,
    "zero_optimization.stage3_prefetch_bucket_size": 0.9 * 4096 * 4096,
}

OPENRLHF = {
    "steps_per_print": 100,
    "zero_optimization": {
        "stage": 3,
        "offload_param": {"device": "none"},
        "offload_optimizer": {"device": "none", "pin_memory": True},
        "sub_group_size": "auto",
        "stage3_max_live_parameters": "auto",
        "stage3_max_reuse_distance": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "reduce_bucket_size": "auto",
        "zero_hpz_partition_size": 1,
        "zero_quantized_weights": False,
        "zero_quantized_gradients": False,
    },
    "bf16": {"enabled": True},
    "gradient_clipping": 1.0,
    "prescale_gradients": False,
    "wall_clock_breakdown": False,
    "data_types": {"grad_accum_dtype": None},
    "checkpoint": {"load_universal": False},
    "compile": {"deepcompile": False},
    "tensor_parallel": {"autotp_size": 1},
    "train_micro_batch_size_per_gpu": 2,
    "train_batch_size": 8,
}

MS_SWIFT = {
    **OPENRLHF,
    "zero_optimization": {"stage": 3, "gather_16bit_weights_on_model_save": True},
    "elasticity": {"enabled": False},
    "checkpoint": {"load_universal": True},
}

ARCTIC = {
    "train_micro_batch_size_per_gpu": 1,
    "bfloat16": {"enabled": True},
    "sequence_parallel_size": 1,
    "prescale_gradients": False,
    "wall_clock_breakdown": False,
    "zero_optimization": {"stage": 2},
}

EXAMPLES = {
    "train_batch_size": 8,
    "fp16": {"enabled": True, "fp16_master_weights_and_grads": False},
    "zero_optimization": {"stage": 2, "cpu_offload": True},
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3, "torch_adam": True}},
    "checkpoint": {
        "writer": {"type": "FAST", "decoupled": False},
        "checkpoint_serialization": False,
    },
}

CLIENTS = {
    "transformers": TRANSFORMERS,
    "accelerate": ACCELERATE,
    "lightning": LIGHTNING,
    "trl": TRL,
    "openrlhf": OPENRLHF,
    "ms-swift": MS_SWIFT,
    "arctic": ARCTIC,
    "examples": EXAMPLES,
}


@pytest.mark.parametrize("client", CLIENTS)
def test_configuration_of_a_client_is_accepted(client) -> None:
    config = load_config(CLIENTS[client], world_size=2)
    assert config.raw == CLIENTS[client]
    assert config.batch.train == config.batch.micro * config.batch.accumulation * 2


def test_old_names_set_the_new_settings() -> None:
    swift = load_config(MS_SWIFT, world_size=2).section("zero_optimization")
    assert swift.stage3_gather_16bit_weights_on_model_save is True
    assert load_config(ARCTIC, world_size=2).section("bf16").enabled is True
    examples = load_config(EXAMPLES, world_size=2).section("zero_optimization")
    assert examples.offload_optimizer.device == "cpu"


def test_gpt_neox_hands_over_base64_in_args() -> None:
    text = base64.urlsafe_b64encode(json.dumps(TRANSFORMERS).encode()).decode()
    source = resolve_source({"deepspeed_config": text, "local_rank": 0})
    assert load_config(source, world_size=2).raw == TRANSFORMERS
