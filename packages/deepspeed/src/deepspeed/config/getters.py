"""Readers of single keys of an unchecked JSON object, for programs that call them by name."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import torch

from deepspeed.config.source import read_source

_PATHS: dict[str, tuple[str, Any]] = {
    "get_checkpoint_params": ("checkpoint", {}),
    "get_data_types_params": ("data_types", {}),
    "get_dataloader_drop_last": ("dataloader_drop_last", False),
    "get_disable_allgather": ("disable_allgather", False),
    "get_dump_state": ("dump_state", False),
    "get_gradient_accumulation_steps": ("gradient_accumulation_steps", None),
    "get_gradient_allreduce_op": ("gradient_allreduce_op", "mean"),
    "get_gradient_clipping": ("gradient_clipping", 1.0),
    "get_gradient_predivide_factor": ("gradient_predivide_factor", 1.0),
    "get_graph_harvesting": ("graph_harvesting", False),
    "get_log_level": ("log_level", None),
    "get_managed_gradient_accumulation": ("managed_gradient_accumulation", True),
    "get_memory_breakdown": ("memory_breakdown", False),
    "get_optimizer_gradient_clipping": ("optimizer.params.max_grad_norm", None),
    "get_optimizer_legacy_fusion": ("optimizer.legacy_fusion", False),
    "get_optimizer_name": ("optimizer.type", None),
    "get_optimizer_params": ("optimizer.params", None),
    "get_pld_enabled": ("progressive_layer_drop.enabled", False),
    "get_prescale_gradients": ("prescale_gradients", False),
    "get_scheduler_name": ("scheduler.type", None),
    "get_scheduler_params": ("scheduler.params", None),
    "get_sparse_gradients_enabled": ("sparse_gradients", False),
    "get_steps_per_print": ("steps_per_print", None),
    "get_torch_autocast_enabled": ("torch_autocast.enabled", False),
    "get_train_batch_size": ("train_batch_size", None),
    "get_train_micro_batch_size_per_gpu": ("train_micro_batch_size_per_gpu", None),
    "get_wall_clock_breakdown": ("wall_clock_breakdown", False),
    "get_zero_allow_untested_optimizer": ("zero_allow_untested_optimizer", False),
    "get_zero_force_ds_cpu_optimizer": ("zero_force_ds_cpu_optimizer", True),
}


class DtypeEnum(Enum):
    """The dtypes a configuration can name."""

    fp16 = torch.float16
    fp32 = torch.float32
    int8 = torch.int8
    bf16 = torch.bfloat16


class DeepSpeedConfigWriter:
    """A JSON object that can be filled key by key and written to a file."""

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        self.data: dict[str, Any] = {} if data is None else data

    def add_config(self, key: str, value: Any) -> None:
        """Set one top-level key."""
        self.data[key] = value

    def load_config(self, filename: str | os.PathLike[str]) -> None:
        """Replace everything by the contents of a JSON file."""
        self.data = read_source(filename).values

    def write_config(self, filename: str | os.PathLike[str]) -> None:
        """Write everything to a JSON file."""
        with open(filename, "w", encoding="utf-8") as file:
            json.dump(self.data, file)


def get_communication_data_type(
    param_dict: Mapping[str, Any],
    comm_type: str = "communication_data_type",
    comm_data_type_default: torch.dtype | None = None,
) -> torch.dtype | None:
    """The dtype that the key `comm_type` names."""
    name = param_dict.get(comm_type)
    return comm_data_type_default if name is None else DtypeEnum[name].value


def __getattr__(name: str) -> Callable[[Mapping[str, Any]], Any]:
    if name not in _PATHS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    path, default = _PATHS[name]

    def read(param_dict: Mapping[str, Any]) -> Any:
        value: Any = param_dict
        for key in path.split("."):
            if not isinstance(value, Mapping) or key not in value:
                return default
            value = value[key]
        return value

    read.__name__ = read.__qualname__ = name
    read.__doc__ = f"The value at `{path}`, by default {default!r}."
    return read
