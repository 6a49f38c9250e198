"""The configuration under the attribute names that existing programs read."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import torch

from deepspeed.config.batch import WorldSize
from deepspeed.config.faults import ConfigFaults
from deepspeed.config.load import Config, load_config
from deepspeed.config.source import Source, read_source

_log = logging.getLogger(__name__)

_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

_MONITORS = ("tensorboard", "comet", "wandb", "csv_monitor")

_ON_DEMAND = {
    "aio_config": "aio",
    "comms_config": "comms_logger",
    "data_efficiency_config": "data_efficiency",
    "flops_profiler_config": "flops_profiler",
    "pipeline": "pipeline",
    "timers_config": "timers",
}
"""Attribute -> section of a package that is imported when the attribute is read."""


@dataclass(frozen=True)
class WholeState:
    """Stands for `zero_optimization` where ds-zero is not installed: nothing is partitioned."""

    stage: int = 0


def load_ds_config(config: Source) -> dict[str, Any]:
    """The JSON object of a dict, a file or base64 text, before any check of its keys."""
    raw = read_source(config)
    if raw.faults:
        raise ConfigFaults(raw.label, raw.faults)
    return raw.values


class DeepSpeedConfig:
    """A checked configuration with the flat attributes of old.

    Args:
        config: a dict, the path of a JSON file, or url-safe base64 of JSON.
        mpu: an object with `get_data_parallel_world_size()`.
        mesh_device: a device mesh with a dimension called `data_parallel`.
    """

    train_batch_size: int
    train_micro_batch_size_per_gpu: int
    gradient_accumulation_steps: int
    world_size: int
    gradient_clipping: float
    fp16_enabled: bool
    bfloat16_enabled: bool
    zero_enabled: bool
    zero_optimization_stage: int
    zero_config: Any  # the dataclass of whichever package serves zero_optimization
    optimizer_name: str | None
    optimizer_params: dict[str, Any] | None
    scheduler_name: str | None
    scheduler_params: dict[str, Any] | None

    def __init__(self, config: Source, mpu: Any = None, mesh_device: Any = None) -> None:
        self.resolved = load_config(
            config, world_size=_world_size(mpu, mesh_device), replaced=("optimizer", "scheduler")
        )
        self._param_dict = self.resolved.raw
        for attributes in (_sizes, _top_level, _precision, _training, _sections):
            vars(self).update(attributes(self.resolved))

    def __getattr__(self, name: str) -> Any:
        if name in _ON_DEMAND:
            return _given(self.resolved, _ON_DEMAND[name])
        if name == "monitor_config":
            return SimpleNamespace(**{key: _given(self.resolved, key) for key in _MONITORS})
        raise AttributeError(f"DeepSpeedConfig has no {name!r}; the raw keys are in .resolved.raw")

    def print(self, name: str) -> None:
        """Log every attribute under a heading."""
        _log.info("%s:", name)
        for key, value in sorted(vars(self).items()):
            _log.info("  %s = %s", key, value)

    def print_user_config(self) -> None:
        """Log the JSON as it was given."""
        _log.info("json = %s", json.dumps(self._param_dict, indent=2, default=str))


def _world_size(mpu: Any, mesh_device: Any) -> WorldSize | None:
    if mpu is not None:
        return WorldSize(mpu.get_data_parallel_world_size(), "mpu.get_data_parallel_world_size()")
    if mesh_device is not None:
        axis = mesh_device.mesh_dim_names.index("data_parallel")
        return WorldSize(mesh_device.size(axis), "the axis data_parallel of mesh_device")
    return None


def _sizes(config: Config) -> dict[str, Any]:
    batch = config.batch
    return {
        "train_batch_size": batch.train,
        "train_micro_batch_size_per_gpu": batch.micro,
        "gradient_accumulation_steps": batch.accumulation,
        "world_size": batch.world_size,
    }


def _top_level(config: Config) -> dict[str, Any]:
    general = config.general
    return {
        **asdict(general),
        "gradient_clipping": general.gradient_clipping or 0.0,
        "communication_data_type": _DTYPES.get(general.communication_data_type or ""),
        "seq_parallel_communication_data_type": _DTYPES[
            general.seq_parallel_communication_data_type
        ],
        "sparse_gradients_enabled": general.sparse_gradients,
        "use_data_before_expert_parallel_": general.use_data_before_expert_parallelism,
        "wall_clock_breakdown": _enabled(config, "wall_clock_breakdown"),
    }


def _precision(config: Config) -> dict[str, Any]:
    fp16, bf16 = config.section("fp16"), config.section("bf16")
    autocast = config.section("torch_autocast")
    return {
        "fp16_enabled": fp16.enabled,
        "float16_config": fp16,
        "bfloat16_enabled": bf16.enabled,
        "bfloat16_config": bf16,
        "amp_enabled": False,
        "amp_params": False,
        "torch_autocast_enabled": autocast.enabled,
        "torch_autocast_dtype": _DTYPES[autocast.dtype] if autocast.enabled else None,
        "torch_autocast_lower_precision_safe_modules": autocast.lower_precision_safe_modules,
        "grad_accum_dtype": config.section("data_types").grad_accum_dtype,
    }


def _training(config: Config) -> dict[str, Any]:
    optimizer, scheduler = config.sections.get("optimizer"), config.sections.get("scheduler")
    zero = config.section("zero_optimization") if _served(config) else WholeState()
    return {
        "optimizer_name": getattr(optimizer, "type", "").lower() or None,
        "optimizer_params": getattr(optimizer, "params", None),
        "optimizer_legacy_fusion": False,
        "scheduler_name": getattr(scheduler, "type", None),
        "scheduler_params": getattr(scheduler, "params", None),
        "zero_config": zero,
        "zero_enabled": int(zero.stage) > 0,
        "zero_optimization_stage": int(zero.stage),
    }


def _sections(config: Config) -> dict[str, Any]:
    checkpoint = config.section("checkpoint")
    return {
        "checkpoint_config": checkpoint,
        "checkpoint_tag_validation_enabled": checkpoint.tag_validation != "Ignore",
        "checkpoint_tag_validation_fail": checkpoint.tag_validation == "Fail",
        "load_universal_checkpoint": checkpoint.load_universal,
        "use_node_local_storage": checkpoint.use_node_local_storage,
        "checkpoint_parallel_write_pipeline": checkpoint.parallel_write.pipeline_stage,
        "activation_checkpointing_config": config.section("activation_checkpointing"),
        "data_efficiency_enabled": _enabled(config, "data_efficiency"),
        "curriculum_enabled_legacy": _enabled(config, "curriculum_learning"),
        "curriculum_params_legacy": config.raw.get("curriculum_learning", False),
        "pld_enabled": _enabled(config, "progressive_layer_drop"),
        "pld_params": _without_enabled(config.raw.get("progressive_layer_drop")),
        "elasticity_enabled": False,
        "eigenvalue_enabled": False,
        "sparse_attention": None,
        "graph_harvesting": False,
        "weight_quantization_config": None,
    }


def _served(config: Config) -> bool:
    return "zero_optimization" in config.installed or "zero_optimization" in config.sections


def _given(config: Config, name: str) -> Any:
    """The section as given or by default, as installed; None if nothing serves it."""
    if name in config.sections or name in config.installed:
        return config.section(name)
    return None


def _enabled(config: Config, name: str) -> bool:
    return bool(getattr(config.sections.get(name), "enabled", False))


def _without_enabled(raw: Any) -> Any:
    if not isinstance(raw, Mapping) or not raw.get("enabled"):
        return False
    return {key: value for key, value in raw.items() if key != "enabled"}
