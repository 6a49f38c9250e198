"""The function-style activation checkpointing that programs call, on one default object."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from deepspeed.legacy.finder import refusal
from ds_core.activation_checkpointing import (
    MODEL_PARALLEL,
    ActivationCheckpointer,
    CheckpointOptions,
    RNGTracker,
)
from ds_core.errors import ConfigError

CudaRNGStatesTracker = RNGTracker
_MODEL_PARALLEL_RNG_TRACKER_NAME = MODEL_PARALLEL
_CUDA_RNG_STATE_TRACKER = RNGTracker()

_MODEL_PARALLEL_SEED_OFFSET = 2718

_REFUSED = {
    "gather_partitioned_activations": "activations are gathered where they are needed",
    "get_cpu_activations_for_backward": "activations are packed by autograd hooks",
    "get_offloaded_activations_for_backward": "activations are packed by autograd hooks",
    "get_partition_size": "see ds_core.activation_checkpointing.keep.own_part",
    "get_partition_start": "see ds_core.activation_checkpointing.keep.own_part",
    "get_partitioned_activations_for_backward": "activations are packed by autograd hooks",
    "partition_activations": "call configure(mpu, partition_activations=True)",
    "restore_offloaded_activations": "activations are packed by autograd hooks",
}


@dataclass
class _Default:
    """What `configure` has set for the whole process, as the old interface has it."""

    options: CheckpointOptions = field(
        default_factory=lambda: CheckpointOptions(use_reentrant=True)
    )
    mpu: Any = None
    configured: bool = False
    checkpointers: dict[bool, ActivationCheckpointer] = field(default_factory=dict)

    def checkpointer(self, *, use_reentrant: bool) -> ActivationCheckpointer:
        if use_reentrant not in self.checkpointers:
            options = replace(self.options, use_reentrant=use_reentrant)
            group = _ask(self.mpu, "group") if options.partition_activations else None
            self.checkpointers[use_reentrant] = ActivationCheckpointer(
                options, partition_group=group, rng=_CUDA_RNG_STATE_TRACKER
            )
        return self.checkpointers[use_reentrant]

    def change(self, **options: Any) -> None:
        given = {name: value for name, value in options.items() if value is not None}
        self.options = replace(self.options, **given)
        self.checkpointers = {}


_default = _Default()


def configure(
    mpu_: Any,
    deepspeed_config: Any = None,
    partition_activations: bool | None = None,
    contiguous_checkpointing: bool | None = None,
    num_checkpoints: int | None = None,
    checkpoint_in_cpu: bool | None = None,
    synchronize: bool | None = None,
    profile: bool | None = None,
) -> None:
    """Say what the functions here do with activations; arguments win over the config.

    Args:
        mpu_: answers `get_model_parallel_group()` and `get_model_parallel_rank()`; None without
            model parallelism.
        deepspeed_config: a config (dict, path, `DeepSpeedConfig`) with an
            `activation_checkpointing` section.
        partition_activations: each rank of the model-parallel group keeps a part.
        contiguous_checkpointing: keep activations in buffers made once.
        num_checkpoints: checkpoints that these buffers hold.
        checkpoint_in_cpu: keep activations in host memory.
        synchronize: wait for the device at each boundary.
        profile: log the time of each run.
    """
    fresh = _Default(mpu=mpu_, configured=True)
    if deepspeed_config is not None:
        section = _section(deepspeed_config)
        known = {option.name for option in fields(CheckpointOptions)} - {"use_reentrant"}
        fresh.change(**{name: getattr(section, name) for name in known})
    fresh.change(
        partition_activations=partition_activations,
        contiguous_memory_optimization=contiguous_checkpointing,
        number_checkpoints=num_checkpoints,
        cpu_checkpointing=checkpoint_in_cpu,
        synchronize_checkpoint_boundary=synchronize,
        profile=profile,
    )
    if fresh.options.partition_activations and mpu_ is None:
        raise ConfigError(
            "partition_activations needs an mpu: activations are split over its ranks; "
            "without model parallelism leave it out"
        )
    fresh.checkpointer(use_reentrant=True)
    vars(_default).update(vars(fresh))


def is_configured() -> bool:
    """True once `configure` has been called."""
    return _default.configured


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`function(*args)`, computed again in the backward pass; a 1-tuple comes back unwrapped."""
    output = _default.checkpointer(use_reentrant=True)(function, *args, **kwargs)
    return output[0] if isinstance(output, tuple) and len(output) == 1 else output


def non_reentrant_checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """As `checkpoint`, with PyTorch's newer kind."""
    output = _default.checkpointer(use_reentrant=False)(function, *args)
    return output[0] if isinstance(output, tuple) and len(output) == 1 else output


class CheckpointFunction:
    """The old entry: `CheckpointFunction.apply(function, outputs, *args)` fills `outputs`."""

    @staticmethod
    def apply(run_function: Callable[..., Any], all_outputs: list[Any], *args: Any) -> Any:
        output = _default.checkpointer(use_reentrant=True)(run_function, *args)
        found = output if isinstance(output, tuple) else (output,)
        all_outputs += found
        return tuple(item for item in found if isinstance(item, Tensor))


def reset() -> None:
    """Let go of the buffers of contiguous checkpointing; they are made again when needed."""
    _default.checkpointers = {}


def set_num_layers(nlayers: int) -> None:
    """Say how many checkpoints the buffers hold."""
    _default.change(number_checkpoints=nlayers)


def partition_activations_in_checkpoint(partition_activation: bool) -> None:
    """Turn partitioning on or off."""
    _default.change(partition_activations=partition_activation)


def get_cuda_rng_tracker() -> RNGTracker:
    """The process-wide named random states."""
    return _CUDA_RNG_STATE_TRACKER


def model_parallel_cuda_manual_seed(seed: int) -> None:
    """Seed alike on all ranks, and the model-parallel state by the model-parallel rank."""
    _CUDA_RNG_STATE_TRACKER.seed_model_parallel(seed, _rank())


def model_parallel_reconfigure_tp_seed(seed: int) -> None:
    """Begin the model-parallel state again at another seed."""
    with _CUDA_RNG_STATE_TRACKER.fork():
        torch.manual_seed(seed + _MODEL_PARALLEL_SEED_OFFSET + _rank())


def detach_variable(inputs: Any, device: Any = None) -> tuple[Any, ...]:
    """The tensors among `inputs` cut off from their history, keeping `requires_grad`."""
    if not isinstance(inputs, tuple):
        raise TypeError(f"detach_variable takes a tuple, not {type(inputs).__name__}")

    def detached(item: Any) -> Any:
        if not isinstance(item, Tensor):
            return item
        moved = item if device is None else item.to(device)
        return moved.detach().requires_grad_(item.requires_grad)

    return tuple(detached(item) for item in inputs)


def extract_tensors(all_objects: Any) -> tuple[Any, Any, tuple[bool, ...]]:
    """Tensors, the rest, and for each object whether it is a tensor."""
    kind = type(all_objects)
    flags = tuple(isinstance(item, Tensor) for item in all_objects)
    tensors = kind(item for item in all_objects if isinstance(item, Tensor))
    rest = kind(item for item in all_objects if not isinstance(item, Tensor))
    return tensors, rest, flags


def merge_tensors(tensor_objects: Any, non_tensor_objects: Any, tensor_flags: Any) -> Any:
    """The objects that `extract_tensors` took apart, in their old order."""
    tensors, rest = iter(tensor_objects), iter(non_tensor_objects)
    return tuple(next(tensors) if flag else next(rest) for flag in tensor_flags)


def is_activation_to_checkpoint(item: Any) -> bool:
    """True for what is packed: floating-point tensors large enough to be split."""
    if not isinstance(item, Tensor) or not item.is_floating_point():
        return False
    group = _ask(_default.mpu, "group") if _default.mpu is not None else None
    return item.numel() >= (1 if group is None else torch.distributed.get_world_size(group))


def _section(source: Any) -> Any:
    if not hasattr(source, "activation_checkpointing_config"):
        from deepspeed.config.legacy import DeepSpeedConfig

        source = DeepSpeedConfig(source)
    return source.activation_checkpointing_config


def _rank() -> int:
    return 0 if _default.mpu is None else int(_ask(_default.mpu, "rank"))


def _ask(mpu: Any, what: str) -> Any:
    for kind in ("tensor_model", "model", "slice"):
        method = getattr(mpu, f"get_{kind}_parallel_{what}", None)
        if callable(method):
            return method()
    raise ConfigError(f"mpu {type(mpu).__name__} has no get_model_parallel_{what}()")


def __getattr__(name: str) -> Any:
    if name in _REFUSED:
        return refusal(f"{__name__}.{name}", _REFUSED[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
