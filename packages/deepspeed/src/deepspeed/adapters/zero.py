"""ZeRO under the names and signatures that programs know.

This module also stands for `deepspeed.runtime.zero.partition_parameters`, whose function
`zero_wrapper_for_fp_tensor_constructor` programs replace before they enter `Init`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from deepspeed.accelerator import get_accelerator
from deepspeed.distributed import init_distributed
from deepspeed.legacy import fallback
from ds_zero.gathered import (
    GatheredParameters,
    register_external_parameter,
    unregister_external_parameter,
)
from ds_zero.init import Init as _Init
from ds_zero.init import wrap_constructor
from ds_zero.legacy_checkpoints import ordered
from ds_zero.params import ZeroParamStatus
from ds_zero.sections import OffloadOptimizerSection, OffloadParamSection, ZeroSection

_orig_torch_tensor = torch.tensor
_orig_torch_empty = torch.empty
_orig_torch_zeros = torch.zeros
_orig_torch_ones = torch.ones
_orig_torch_full = torch.full
_orig_torch_arange = torch.arange
_orig_torch_eye = torch.eye
_orig_torch_randn = torch.randn


class ZeroStageEnum(IntEnum):
    """Stages by what they shard."""

    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3
    max_stage = 3


class OffloadDeviceEnum(str, Enum):
    """Where offloaded state lies."""

    none = "none"
    cpu = "cpu"
    nvme = "nvme"


class OffloadStateTypeEnum(str, Enum):
    """What `offload_states` can move."""

    optim_states = "optim_states"
    hp_params = "hp_params"
    lp_params = "lp_params"
    lp_grads = "lp_grads"
    contiguous_grad_buffer = "contiguous_grad_buffer"


class ZeroParamType(Enum):
    """Kinds of parameters by where they are sharded."""

    NORMAL = 1
    PARTITIONED = 2
    REMOTE = 3


def zero_wrapper_for_fp_tensor_constructor(
    fn: Callable[..., Tensor], target_fp_dtype: torch.dtype, target_device: torch.device
) -> Callable[..., Tensor]:
    """`fn`, making its tensors on `target_device`, floating-point ones in `target_fp_dtype`."""
    return wrap_constructor(fn, target_fp_dtype, target_device)


class Init(_Init):
    """`ds_zero.init.Init` with the arguments that programs pass, in their order.

    Initialises `torch.distributed` if nobody has. What is not offered is refused by name.
    """

    def __init__(
        self,
        module: nn.Module | None = None,
        data_parallel_group: dist.ProcessGroup | None = None,
        mem_efficient_linear: bool = True,
        remote_device: str | None = None,
        pin_memory: bool = False,
        config_dict_or_path: Mapping[str, Any] | str | Path | None = None,
        config: Mapping[str, Any] | str | Path | None = None,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        mpu: Any = None,
        zero_param_parallel_group: dist.ProcessGroup | None = None,
        zero_quantized_weights: bool = False,
        zero_quantized_nontrainable_weights: bool = False,
        sequence_data_parallel_group: dist.ProcessGroup | None = None,
        param_swapper: Any = None,
    ) -> None:
        refused = {
            "zero_param_parallel_group": zero_param_parallel_group,
            "zero_quantized_weights": zero_quantized_weights,
            "zero_quantized_nontrainable_weights": zero_quantized_nontrainable_weights,
            "param_swapper": param_swapper,
        }
        asked = [name for name, value in refused.items() if value]
        if asked:
            raise NotImplementedError(f"zero.Init: {', '.join(asked)} not offered; leave it out")
        if enabled and not dist.is_initialized():
            init_distributed()
        super().__init__(
            module,
            data_parallel_group or sequence_data_parallel_group,
            mem_efficient_linear,
            remote_device,
            pin_memory,
            config_dict_or_path,
            config,
            enabled,
            dtype,
            mpu,
            wrapper=_present_wrapper,
        )


def _present_wrapper() -> Callable[..., Callable[..., Tensor]]:
    """Whatever the module's wrapper is now: programs put their own in its place."""
    found: Callable[..., Callable[..., Tensor]] = globals()[
        "zero_wrapper_for_fp_tensor_constructor"
    ]
    return found


def get_all_subclasses(cls: type, include_root: bool = True) -> set[type]:
    """Every class below `cls`."""
    found: set[type] = {cls} if include_root else set()
    children: list[type] = cls.__subclasses__()
    for child in children:
        found |= get_all_subclasses(child)
    return found


def is_zero_param(parameter: Any) -> bool:
    """Whether `parameter` is sharded (stage 3)."""
    return torch.is_tensor(parameter) and hasattr(parameter, "ds_id")


class DeepSpeedZeroConfig:
    """`ZeroSection` under its old name: `DeepSpeedZeroConfig(stage=3)` makes a section."""

    def __new__(cls, **settings: Any) -> ZeroSection:  # type: ignore[misc]
        return ZeroSection(**settings)


class DeepSpeedZeroOffloadParamConfig:
    """`OffloadParamSection` under its old name."""

    def __new__(cls, **settings: Any) -> OffloadParamSection:  # type: ignore[misc]
        return OffloadParamSection(**settings)


class DeepSpeedZeroOffloadOptimizerConfig:
    """`OffloadOptimizerSection` under its old name."""

    def __new__(cls, **settings: Any) -> OffloadOptimizerSection:  # type: ignore[misc]
        return OffloadOptimizerSection(**settings)


def get_zero_config(param_dict: Mapping[str, Any]) -> ZeroSection:
    """The section of a configuration given as a dict."""
    found = param_dict.get("zero_optimization", {})
    if isinstance(found, bool):
        found = {"stage": int(found)}
    return ZeroSection(**found)


def model_to_params(model: nn.Module) -> int:
    """Number of parameters of a model, sharded ones counted whole."""
    return sum(int(getattr(p, "ds_numel", p.numel())) for p in _unique(model.parameters()))


def get_model_state_file(checkpoint_dir: str, zero_stage: int) -> str:
    """The first file with module state of a checkpoint folder of the reference.

    Raises:
        FileNotFoundError: there is none; ours have a `manifest.json` instead.
    """
    return get_model_state_files(checkpoint_dir)[0]


def get_model_state_files(checkpoint_dir: str) -> list[str]:
    """Files with module state of a checkpoint folder of the reference, rank 10 after rank 9."""
    return _files(checkpoint_dir, "*_model_states.pt")


def get_optim_files(checkpoint_dir: str) -> list[str]:
    """Files with optimizer state of a checkpoint folder of the reference, in rank order."""
    return _files(checkpoint_dir, "*_optim_states.pt")


def _files(folder: str, pattern: str) -> list[str]:
    found = [str(path) for path in ordered(Path(folder), pattern)]
    if not found:
        raise FileNotFoundError(f"{folder} holds no {pattern}")
    return found


def _unique(params: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return list(dict.fromkeys(params))


__all__ = [
    "DeepSpeedZeroConfig",
    "GatheredParameters",
    "Init",
    "OffloadDeviceEnum",
    "OffloadStateTypeEnum",
    "ZeroParamStatus",
    "ZeroParamType",
    "ZeroStageEnum",
    "get_accelerator",
    "register_external_parameter",
    "unregister_external_parameter",
    "zero_wrapper_for_fp_tensor_constructor",
]


__getattr__ = fallback(__name__)
