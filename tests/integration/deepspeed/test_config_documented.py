"""Every example of the reference's configuration page that a package of ours serves."""

from __future__ import annotations

import pytest

from deepspeed.config import load_config

SECTIONS = {
    "scheduler": {
        "type": "WarmupLR",
        "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 1000},
    },
    "fp16": {
        "enabled": True,
        "auto_cast": False,
        "loss_scale": 0,
        "initial_scale_power": 16,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "consecutive_hysteresis": False,
        "min_loss_scale": 1,
    },
    "bf16": {"enabled": True},
    "activation_checkpointing": {
        "partition_activations": False,
        "cpu_checkpointing": False,
        "contiguous_memory_optimization": False,
        "number_checkpoints": None,
        "synchronize_checkpoint_boundary": False,
        "profile": False,
    },
    "checkpoint": {
        "tag_validation": "Warn",
        "load_universal": False,
        "use_node_local_storage": False,
        "parallel_write": {"pipeline_stage": False},
    },
    "data_types": {"grad_accum_dtype": "fp32"},
    "zero_optimization": {
        "stage": 3,
        "allgather_partitions": True,
        "allgather_bucket_size": 5e8,
        "overlap_comm": False,
        "reduce_scatter": True,
        "reduce_bucket_size": 5e8,
        "contiguous_gradients": True,
        "offload_param": {
            "device": "nvme",
            "nvme_path": "/local_nvme",
            "pin_memory": True,
            "buffer_count": 5,
            "buffer_size": 1e8,
            "max_in_cpu": 1e9,
        },
        "offload_optimizer": {
            "device": "nvme",
            "nvme_path": "/local_nvme",
            "pin_memory": False,
            "buffer_count": 4,
            "fast_init": False,
        },
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_prefetch_bucket_size": 5e8,
        "stage3_param_persistence_threshold": 1e6,
        "sub_group_size": 1e12,
        "elastic_checkpoint": False,
        "stage3_gather_16bit_weights_on_model_save": True,
        "ignore_unused_parameters": True,
        "round_robin_gradients": True,
        "zero_hpz_partition_size": 1,
        "zero_quantized_weights": False,
        "zero_quantized_gradients": False,
        "log_trace_cache_warnings": True,
    },
    "aio": {
        "block_size": 1048576,
        "queue_depth": 8,
        "thread_count": 1,
        "single_submit": False,
        "overlap_events": True,
    },
    "flops_profiler": {
        "enabled": False,
        "profile_step": 1,
        "module_depth": -1,
        "top_modules": 1,
        "detailed": True,
        "output_file": None,
    },
    "tensorboard": {"enabled": True, "output_path": "output/ds_logs/", "job_name": "train_bert"},
    "wandb": {"enabled": True, "group": "my_group", "team": "my_team", "project": "my_project"},
    "comet": {
        "enabled": True,
        "workspace": "my_workspace",
        "project": "my_project",
        "samples_log_interval": 50,
        "experiment_name": "llama-fine-tuning",
        "experiment_key": "0c4a1c4a90664f2a8084e600b19a9d7",
        "online": False,
        "mode": "get",
    },
    "csv_monitor": {"enabled": True, "output_path": "output/ds_logs/", "job_name": "train_bert"},
    "comms_logger": {
        "enabled": True,
        "verbose": False,
        "prof_all": False,
        "debug": False,
        "prof_ops": ["all_reduce", "all_gather"],
    },
    "wall_clock_breakdown": True,
    "curriculum_learning": {
        "enabled": True,
        "curriculum_type": "seqlen",
        "min_difficulty": 8,
        "max_difficulty": 1024,
        "schedule_type": "fixed_linear",
        "schedule_config": {"total_curriculum_step": 40000, "difficulty_step": 8},
    },
    "data_efficiency": {
        "enabled": True,
        "seed": 1234,
        "data_routing": {
            "enabled": True,
            "random_ltd": {
                "enabled": True,
                "total_layer_num": 24,
                "random_ltd_layer_num": 22,
                "random_ltd_layer_id": list(range(1, 23)),
                "model_mask_name": "attention_mask",
                "model_type": "decoder",
                "hidden_state_order": "seq_batch_dim",
                "random_ltd_schedule": {
                    "min_value": 128,
                    "max_value": 2048,
                    "schedule_type": "fixed_linear",
                    "schedule_config": {"require_steps": 200000, "seq_per_step": 16},
                },
            },
        },
        "data_sampling": {
            "enabled": True,
            "num_epochs": 1,
            "num_workers": 0,
            "curriculum_learning": {
                "enabled": True,
                "data_cluster_path": "/path/to/data_clusters",
                "curriculum_metrics": {
                    "vocabularyrarity": {
                        "index_to_sample_path": "/path/to/index_to_sample",
                        "index_to_metric_path": "/path/to/index_to_metric",
                        "difficulty_type": "percentile",
                        "clustering_type": "schedule_based",
                        "min_difficulty": 1,
                        "max_difficulty": 100,
                        "schedule_type": "fixed_root",
                        "schedule_config": {
                            "total_curriculum_step": 110000,
                            "difficulty_step": 1,
                            "root_degree": 2,
                        },
                    }
                },
            },
        },
    },
    "progressive_layer_drop": {"enabled": True, "theta": 0.5, "gamma": 0.001},
}


@pytest.mark.parametrize("name", SECTIONS)
def test_documented_section_is_accepted(name) -> None:
    config = load_config({"train_batch_size": 8, name: SECTIONS[name]}, world_size=1)
    assert name in config.sections
