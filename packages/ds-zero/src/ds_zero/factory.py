"""Chooses the strategy for a `zero_optimization` section: the only place that reads its stage."""

from __future__ import annotations

from dataclasses import replace

from ds_core.contracts import UpdateStrategy
from ds_zero.sections import ZeroSection
from ds_zero.sharded import Sharded, ShardedSettings
from ds_zero.strategy import Offload, Setup


def make(section: ZeroSection, setup: Setup) -> UpdateStrategy:
    """The strategy that `section` asks for, over `setup.module`."""
    offload = Offload()
    settings = ShardedSettings(
        bucket_elements=section.reduce_bucket_size,
        gather_elements=section.allgather_bucket_size,
        overlap=section.overlaps and section.grad_hooks,
        reduce_scatter=section.reduce_scatter,
        all_gather=section.allgather_partitions,
        early_copy=section.contiguous_gradients,
        deal=section.round_robin_gradients,
        step_elements=max(section.sub_group_size, 1),
        require_used=not section.ignore_unused_parameters,
        round_weights=not section.load_from_fp32_weights,
        offload=offload,
    )
    if section.stage == 2:
        settings = replace(settings, shard_gradients=True)
    return Sharded(setup, settings)
