"""Small helpers that programs import from `deepspeed.runtime.utils` and its neighbours."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from ds_core.clip import clip_factor, total_norm
from ds_core.comm import Communicator
from ds_core.reduction import is_model_parallel


def set_random_seed(seed: int) -> None:
    """Seed Python, numpy and torch on every device."""
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def move_to_device(
    item: Any, device: torch.device | str, criterion_func: Callable[[Any], bool] | None = None
) -> Any:
    """The tensors in nested lists, tuples and dicts on `device` (those the criterion accepts)."""
    if torch.is_tensor(item):
        wanted = criterion_func is None or criterion_func(item)
        return item.to(device) if wanted else item
    if isinstance(item, Mapping):
        return {key: move_to_device(value, device, criterion_func) for key, value in item.items()}
    if isinstance(item, (list, tuple)):
        moved = [move_to_device(value, device, criterion_func) for value in item]
        return moved if isinstance(item, list) else tuple(moved)
    return item


def clone_tensors_for_torch_save(item: Any, device: torch.device | str = "cpu") -> Any:
    """Copies of all tensors in nested lists, tuples and dicts, each with memory of its own.

    `torch.save` writes the whole storage behind a view; a clone holds only what is seen. Entries
    that are the same memory (tied weights) stay so, and are stored once.
    """
    return _clone(item, device, {})


def _clone(item: Any, device: torch.device | str, done: dict[Any, Tensor]) -> Any:
    if torch.is_tensor(item):
        key: Any = id(item)
        if item.layout == torch.strided and item.numel():
            key = (item.data_ptr(), item.dtype, item.shape, item.stride())
        if key not in done:
            copy = item.detach().to(device, copy=True)
            done[key] = copy.clone(memory_format=torch.contiguous_format)
        return done[key]
    if isinstance(item, Mapping):
        return type(item)(  # type: ignore[call-arg]  # the mapping's own type, from pairs
            (key, _clone(value, device, done)) for key, value in item.items()
        )
    if isinstance(item, (list, tuple)):
        return type(item)(_clone(value, device, done) for value in item)
    return item


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor], max_norm: float, norm_type: float = 2, mpu: Any = None
) -> Tensor:
    """Clip gradients in place by their global L2 norm over the model-parallel group.

    Returns:
        The norm before clipping.
    """
    if norm_type != 2:
        raise ValueError(f"norm_type {norm_type}: only the L2 norm is supported")
    given = [parameters] if torch.is_tensor(parameters) else list(parameters)
    params = [param for param in given if param.grad is not None]
    group = None if mpu is None else Communicator(mpu.get_model_parallel_group(), name="model")
    pairs = [(param, param.grad.detach()) for param in params if param.grad is not None]
    shared = [grad for param, grad in pairs if not is_model_parallel(param)]  # type: ignore[arg-type]
    sharded = [grad for param, grad in pairs if is_model_parallel(param)]  # type: ignore[arg-type]
    norm = total_norm(shared, sharded, group)
    factor = clip_factor(norm, max_norm)
    if factor != 1.0:
        torch._foreach_mul_([grad for _, grad in pairs], factor)
    return torch.tensor(norm)


def get_global_norm(norm_list: Iterable[float]) -> float:
    """The norm of the whole from the norms of its parts."""
    return math.hypot(*norm_list)


def ensure_directory_exists(filename: str) -> None:
    """Make the folder that `filename` lies in."""
    Path(filename).parent.mkdir(parents=True, exist_ok=True)


def has_inf_or_nan(x: Tensor) -> bool:
    """True if any element is not finite."""
    return not bool(torch.isfinite(x).all())


def empty_cache() -> None:
    """Give the accelerator's cached memory back."""
    if torch.accelerator.is_available():
        torch.accelerator.empty_cache()


class DummyOptim:
    """Holds parameter groups where an optimizer is expected but none is wanted."""

    def __init__(self, params: Iterable[nn.Parameter]) -> None:
        self.param_groups = [{"params": params}]


def instrument_w_nvtx(func: Callable[..., Any]) -> Callable[..., Any]:
    """`func` itself: ranges are recorded by the profiler, not by decorators."""
    return func
