"""Collectives between one flat tensor and its pieces, by the name that this torch has for them.

torch 2.13 renamed them and warns at each use of the old names.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor


def all_gather(out: Tensor, tensor: Tensor, group: dist.ProcessGroup | None) -> dist.Work | None:
    """Start to collect each rank's `tensor` (n elements) in `out` (world * n), by rank."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    work: dist.Work | None = gather(out, tensor, group=group, async_op=True)
    return work


def reduce_scatter(
    out: Tensor, tensor: Tensor, group: dist.ProcessGroup | None
) -> dist.Work | None:
    """Start to sum `tensor` (world * n elements) over the ranks; rank r gets piece r in `out`."""
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    work: dist.Work | None = scatter(out, tensor, group=group, async_op=True)
    return work
