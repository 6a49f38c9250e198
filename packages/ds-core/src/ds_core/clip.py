"""The global gradient norm, and clipping by it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ds_core.comm import Communicator


def squared_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Sum of squares of all elements, as an fp64 scalar on the tensors' device.

    Taken in fp32 first (one fast pass); if that is not finite, again in fp64, since squares of
    finite fp32 values beyond 1.8e19 overflow.
    """
    if not tensors:
        return torch.zeros((), dtype=torch.float64)
    total = _sum_of_squares(tensors, torch.float32)
    return total if math.isfinite(total) else _sum_of_squares(tensors, torch.float64)


def _sum_of_squares(tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    norms = [
        torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, dtype))
        for tensor in tensors
    ]
    return torch.stack([norm.to(torch.float64) for norm in norms]).square().sum()


def total_norm(
    shared: Sequence[Tensor], sharded: Sequence[Tensor], group: Communicator | None
) -> float:
    """L2 norm over a replica that is cut over the model-parallel `group`.

    Args:
        shared: gradients that every rank of `group` holds alike; counted once.
        sharded: gradients of pieces that only this rank holds.
        group: the ranks that hold one replica together; None or a group of one is this rank.
    """
    own = squared_norm(sharded)
    if group is None or group.world_size == 1:
        return math.sqrt(float(own + squared_norm(shared).to(own.device)))
    if group.rank == 0:
        own = own + squared_norm(shared).to(own.device)
    group.all_reduce(own, label="gradient norm").wait()
    return math.sqrt(float(own))


def clip_factor(norm: float, max_norm: float) -> float:
    """The factor that brings `norm` down to `max_norm`; 1.0 if it is there or clipping is off."""
    if max_norm <= 0 or norm <= max_norm:
        return 1.0
    return max_norm / (norm + 1e-6)
