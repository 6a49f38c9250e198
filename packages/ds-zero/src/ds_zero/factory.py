"""Chooses the strategy for a `zero_optimization` section: the only place that reads its stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch

from ds_core.contracts import TensorStore
from ds_core.errors import ConfigError
from ds_core.precision.cast import cast_module
from ds_zero.coordinator import Limits
from ds_zero.fully_sharded import FullySettings, FullySharded
from ds_zero.leaves import find_leaves
from ds_zero.offload import Swapped
from ds_zero.params import shard_of
from ds_zero.sections import OffloadOptimizerSection, ZeroSection
from ds_zero.sharded import Sharded, ShardedSettings
from ds_zero.strategy import Offload, Setup
from ds_zero.units import trained

MakeStore = Callable[[Path], TensorStore]
"""Makes a store in a private folder below the given one."""


def make(
    section: ZeroSection,
    setup: Setup,
    *,
    device: torch.device | None = None,
    make_store: MakeStore | None = None,
) -> Sharded | FullySharded:
    """The strategy that `section` asks for, over `setup.module`.

    Args:
        section: stage 1, 2 or 3; a module built by `zero.Init` gets stage 3.
        setup: `module` is where the user made it and in the user's format.
        device: where it computes.
        make_store: for what the section wants on nvme.

    Raises:
        ConfigError: the section's stage is another, or parameters share memory.
    """
    _require_apart(setup)
    if section.stage == 3 or any(shard_of(param) for param in setup.module.parameters()):
        return _fully_sharded(section, setup, device, make_store)
    if section.stage not in (1, 2):
        raise ConfigError(f"zero_optimization.stage is {section.stage}; choose 1, 2 or 3")
    return _sharded(section, setup, device, make_store)


def _require_apart(setup: Setup) -> None:
    """Raise if two trained parameters lie in the same memory: each is given its own."""
    wanted = trained(setup.param_groups)
    places = sorted(
        (str(param.device), param.data_ptr(), param.data_ptr() + param.nbytes, name)
        for name, param in setup.module.named_parameters()
        if param in wanted and param.numel() and param.is_contiguous()
    )
    for (device, _, end, first), (other, begin, _, second) in pairwise(places):
        if device == other and begin < end:
            raise ConfigError(
                f"'{first}' and '{second}' are two parameters in the same memory, which ZeRO would "
                "part: give both modules one parameter object (a.weight = b.weight), or copies"
            )


def _offload(section: ZeroSection, make_store: MakeStore | None) -> Offload:
    optimizer = section.offload_optimizer
    if optimizer.device == "none":
        return Offload()
    residence = None
    if optimizer.device == "nvme":
        store = _store(optimizer.nvme_path, make_store)
        residence = partial(_swapped, store, optimizer)
    return Offload(part=optimizer.ratio, pin_memory=optimizer.pin_memory, residence=residence)


def _swapped(make_store: Callable[[], TensorStore], section: OffloadOptimizerSection) -> Swapped:
    return Swapped(
        make_store(),
        read_ahead=section.pipeline_read,
        write_behind=section.pipeline_write,
        count=section.buffer_count,
        fast_init=section.fast_init,
    )


def _store(path: Path | None, make_store: MakeStore | None) -> Callable[[], TensorStore]:
    if make_store is None:
        raise ConfigError("zero_optimization: device 'nvme' needs a tensor store; install ds-aio")
    assert path is not None, "checked by the section"
    return partial(make_store, path)


def _sharded(
    section: ZeroSection, setup: Setup, device: torch.device | None, make_store: MakeStore | None
) -> Sharded:
    setup = _placed(setup, device)
    settings = ShardedSettings(
        shard_gradients=section.stage == 2,
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
        offload=_offload(section, make_store),
    )
    return Sharded(setup, settings)


def _fully_sharded(
    section: ZeroSection, setup: Setup, device: torch.device | None, make_store: MakeStore | None
) -> FullySharded:
    param = section.offload_param
    on_nvme = param.device == "nvme"
    settings = FullySettings(
        bucket_elements=section.reduce_bucket_size,
        overlap=section.overlaps,
        reduce_scatter=section.reduce_scatter,
        with_all_reduce=section.stage3_use_all_reduce_for_fetch_params,
        early_copy=section.contiguous_gradients,
        step_elements=max(section.sub_group_size, 1),
        persist=section.stage3_param_persistence_threshold,
        persist_total=section.stage3_model_persistence_threshold,
        limits=Limits(
            prefetch=section.stage3_prefetch_bucket_size if section.overlaps else 0,
            live=section.stage3_max_live_parameters,
            reuse=section.stage3_max_reuse_distance,
            apart=section.stage3_allgather_sequential,
            remember_places=section.memory_efficient_linear,
            log_changes=section.log_trace_cache_warnings,
        ),
        require_used=not section.ignore_unused_parameters,
        round_weights=not section.load_from_fp32_weights,
        offload=_offload(section, make_store),
        weights_store=_store(param.nvme_path, make_store) if on_nvme else None,
        weights_in_memory=param.max_in_cpu,
        weights_piece=param.buffer_size,
        weights_pieces=param.buffer_count,
        check=section.enable_sanity_checks,
        shares_on_host=param.device != "none",
        pin_shares=param.pin_memory,
        device=device,
        dtype=setup.precision.compute_dtype,
    )
    leaves = find_leaves(
        setup.module, section.leaf_module, granularity=section.stage3_module_granularity_threshold
    )
    return FullySharded(setup, settings, leaves=leaves)


def _placed(setup: Setup, device: torch.device | None) -> Setup:
    """The module on its device and in its compute format, with the values from before."""
    if device is None:
        return setup
    keep = [param for group in setup.param_groups for param in group["params"]]
    originals = cast_module(
        setup.module, device=device, dtype=setup.precision.compute_dtype, keep=keep
    )
    return replace(setup, originals=originals)
