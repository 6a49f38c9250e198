"""Small functions that programs import from the old package and that have no other home."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from deepspeed.engine import DeepSpeedEngine
from deepspeed.logs import log_dist, logger
from deepspeed.precision import autocast_context
from ds_core.clip import total_norm

F = TypeVar("F", bound=Callable[..., Any])


def is_compile_supported() -> bool:
    """True: every supported PyTorch compiles."""
    return True


def autocast_if_enabled(engine: DeepSpeedEngine) -> AbstractContextManager[Any]:
    """The context that `engine` runs its forward in, for modules that are called beside it."""
    return autocast_context(engine.configuration, engine.device.type)()


def noop_decorator(function: F) -> F:
    return function


def prefix_sum_inc(weights: Iterable[float]) -> list[float]:
    """Sums of all prefixes, each including its last element."""
    return list(accumulate(weights))


def get_only_unique_item(items: Iterable[Any]) -> Any:
    """The one value that all items have.

    Raises:
        RuntimeError: if they differ or there are none.
    """
    found = set(items)
    if len(found) != 1:
        raise RuntimeError(f"expected one distinct item, got {sorted(map(repr, found))}")
    return found.pop()


def get_global_norm_of_tensors(
    input_tensors: Iterable[Tensor], norm_type: float = 2, mpu: Any = None, **ignored: Any
) -> Tensor:
    """The L2 norm of all tensors on this rank together, as a tensor."""
    if norm_type != 2 or mpu is not None:
        raise ValueError("only the L2 norm of local tensors is offered (norm_type=2, mpu=None)")
    return torch.tensor(total_norm(list(input_tensors), [], None))


def get_inactive_params(param_list: Iterable[Any]) -> list[nn.Parameter]:
    """Those of `param_list` that ZeRO-3 holds empty at the moment."""
    return [p for p in param_list if getattr(p, "ds_id", None) is not None and p.numel() == 0]


def get_tensor_bytes(item: Any) -> int:
    """Bytes of all tensors in nested lists, tuples and dicts."""
    if torch.is_tensor(item):
        return int(item.nbytes)
    if isinstance(item, dict):
        item = item.values()
    elif not isinstance(item, (list, tuple)):
        return 0
    return sum(map(get_tensor_bytes, item))


def to_python_float(value: Any) -> float:
    return float(value.item()) if hasattr(value, "item") else float(value[0])


def log_dist_once(message: str, ranks: Iterable[int] | None = None, level: int = 20) -> None:
    """`log_dist`, but a message that was logged already is not repeated."""
    seen: set[str] = logger.__dict__.setdefault("_said_once", set())
    if message not in seen:
        seen.add(message)
        log_dist(message, ranks, level)
