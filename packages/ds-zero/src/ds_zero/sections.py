"""The JSON section `zero_optimization`: every key, its default, its range."""

# ruff: noqa: RUF009 (the helpers below return dataclass fields)
from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

OffloadDevice = Literal["none", "cpu", "nvme"]
_LEAF_CLASSES = (
    "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock",
    "transformers.models.qwen2_moe.modeling_qwen2_moe.Qwen2MoeSparseMoeBlock",
    "transformers.models.qwen3_moe.modeling_qwen3_moe.Qwen3MoeSparseMoeBlock",
)


_ZEROPP = "ZeRO++ is not available; remove the key"
_MICS = "MiCS is not available; remove the key"
_SUPER = "super offload is not available; use device 'cpu' with a ratio below 1"


def _key(default: Any, doc: str, **facts: Any) -> Any:
    return field(default=default, metadata={"doc": doc} | facts)


def _size(default: int, doc: str, **facts: Any) -> Any:
    return _key(default, doc, **({"ge": 0, "size": True, "auto": True} | facts))


def _part(factory: Callable[[], Any], doc: str) -> Any:
    return field(default_factory=factory, metadata={"doc": doc})


def _refused(only: Any, otherwise: str) -> Any:
    return _key(only, f"refused: {otherwise}", only=only, otherwise=otherwise)


def _check_refused(section: Any, path: str) -> None:
    """Raise for every field that has another value than the only one that can be served."""
    found = [
        f"{path}.{entry.name}={getattr(section, entry.name)!r}: {entry.metadata['otherwise']}"
        for entry in fields(section)
        if "only" in entry.metadata and getattr(section, entry.name) != entry.metadata["only"]
    ]
    if found:
        raise ValueError("; ".join(found))


@dataclass(frozen=True, slots=True)
class OffloadOptimizerSection:
    """Where optimizer state lies and is stepped."""

    device: OffloadDevice = _key("none", "memory that holds optimizer state: none, cpu or nvme")
    nvme_path: Path | None = _key(None, "folder of the swap files; each engine makes its own in it")
    buffer_count: int = _key(
        4, "most sub-groups whose state is in memory at a time (read, stepped, written)", ge=0
    )
    pin_memory: bool = _key(True, "page-locked host memory, where a device copies from it")
    pipeline_read: bool = _key(True, "read the next segment while this one steps")
    pipeline_write: bool = _key(True, "write the last segment while this one steps")
    fast_init: bool = _key(False, "write masters to nvme side by side at start, not in turn")
    ratio: float = _key(1.0, "part of the state that is offloaded; the rest stays", ge=0.0, le=1.0)
    super_offload: bool = _refused(False, _SUPER)
    cpuadam_cores_perc: float = _refused(0.8, _SUPER)

    def __post_init__(self) -> None:
        path = "zero_optimization.offload_optimizer"
        _needs_path(path, self.device, self.nvme_path)
        _check_refused(self, path)


@dataclass(frozen=True, slots=True)
class OffloadParamSection:
    """Where the shards of stage 3 parameters lie between uses."""

    device: OffloadDevice = _key("none", "memory that holds parameter shards: none, cpu or nvme")
    nvme_path: Path | None = _key(None, "folder of the swap files; each engine makes its own in it")
    buffer_count: int = _key(5, "most buffers through which a step writes shards to nvme", ge=0)
    buffer_size: int = _size(100_000_000, "most elements a buffer; larger shards go in pieces")
    max_in_cpu: int = _size(1_000_000_000, "elements of shards kept in memory with device nvme")
    pin_memory: bool = _key(True, "page-locked host memory, where a device copies from it")

    def __post_init__(self) -> None:
        _needs_path("zero_optimization.offload_param", self.device, self.nvme_path)


@dataclass(frozen=True, slots=True)
class LeafModuleSection:
    """Modules whose parameters are gathered together and kept until the pass ends."""

    classes: tuple[str, ...] = _key(_LEAF_CLASSES, "class names, short or fully qualified")
    names: tuple[str, ...] = _key((), "dotted names of modules")
    name_suffixes: tuple[str, ...] = _key((), "ends of dotted names of modules")


@dataclass(frozen=True, slots=True)
class ZeroSection:
    """How optimizer state, gradients and parameters are sharded over data-parallel ranks."""

    stage: Literal[0, 1, 2, 3] = _key(0, "1 shards optimizer state, 2 gradients, 3 parameters")
    contiguous_gradients: bool = _key(True, "copy gradients into their bucket as they arrive")
    reduce_scatter: bool = _key(True, "reduce-scatter gradients; false: all-reduce, keep the share")
    reduce_bucket_size: int = _size(500_000_000, "most elements of a gradient bucket", ge=1)
    use_multi_rank_bucket_allreduce: bool = _refused(
        True, "a bucket always spans all ranks; remove the key"
    )
    allgather_partitions: bool = _key(True, "all-gather new weights; false: broadcast each share")
    allgather_bucket_size: int = _size(500_000_000, "most elements gathered by one collective")
    overlap_comm: bool | None = _key(None, "communicate during backward (default: yes)", auto=True)
    load_from_fp32_weights: bool = _key(
        True, "take fp32 weights from a checkpoint, not 16-bit ones"
    )
    elastic_checkpoint: bool = _key(
        False, "no effect", deprecated="every checkpoint loads at every world size"
    )
    grad_hooks: bool = _key(True, "reduce during backward; false: stage 1 reduces at its end")
    offload_param: OffloadParamSection = _part(
        OffloadParamSection, "parameter shards off the device"
    )
    offload_optimizer: OffloadOptimizerSection = _part(
        OffloadOptimizerSection, "optimizer state off the device"
    )
    zenflow: dict[str, Any] | None = _refused(
        None, "ZenFlow is not available; use offload_optimizer"
    )
    sub_group_size: int = _size(1_000_000_000, "most elements stepped or swapped at once")
    cpu_offload: bool | None = _key(
        None, "optimizer state on the CPU", deprecated="offload_optimizer: {device: cpu}"
    )
    cpu_offload_param: bool | None = _key(
        None, "parameter shards on the CPU", deprecated="offload_param: {device: cpu}"
    )
    cpu_offload_use_pin_memory: bool | None = _key(
        None, "page-locked host memory", deprecated="offload_*: {pin_memory: true}"
    )
    stage3_prefetch_bucket_size: int = _size(
        50_000_000, "elements gathered ahead of their use", aliases=("prefetch_bucket_size",)
    )
    stage3_param_persistence_threshold: int = _size(
        100_000,
        "parameters up to this many elements stay whole",
        aliases=("param_persistence_threshold",),
    )
    stage3_model_persistence_threshold: int = _size(
        sys.maxsize,
        "most elements that stay whole, all together",
        aliases=("model_persistence_threshold",),
    )
    stage3_max_live_parameters: int = _size(
        1_000_000_000, "most elements whole at a time", aliases=("max_live_parameters",)
    )
    stage3_max_reuse_distance: int = _size(
        1_000_000_000,
        "keep a parameter that is used again within this many elements",
        aliases=("max_reuse_distance",),
    )
    stage3_gather_16bit_weights_on_model_save: bool = _key(
        False,
        "let save_16bit_model gather whole weights",
        aliases=("gather_16bit_weights_on_model_save",),
    )
    stage3_gather_fp16_weights_on_model_save: bool = _key(
        False, "the old name", deprecated="stage3_gather_16bit_weights_on_model_save"
    )
    stage3_module_granularity_threshold: int = _size(
        0, "modules finer than this are gathered whole", aliases=("module_granularity_threshold",)
    )
    stage3_use_all_reduce_for_fetch_params: bool = _key(
        False, "gather with an all-reduce", aliases=("use_all_reduce_for_fetch_params",)
    )
    stage3_allgather_sequential: bool = _key(
        False, "gather one parameter at a time", aliases=("allgather_sequential",)
    )
    ignore_unused_parameters: bool = _key(True, "false: a parameter no rank used is an error")
    legacy_stage1: bool = _refused(False, "there is one stage 1; remove the key")
    round_robin_gradients: bool = _key(False, "deal tensors to buckets in turn, large and small")
    zero_hpz_partition_size: int = _refused(1, _ZEROPP)
    zero_quantized_weights: bool = _refused(False, _ZEROPP)
    zero_quantized_nontrainable_weights: bool = _refused(False, _ZEROPP)
    zero_quantized_gradients: bool = _refused(False, _ZEROPP)
    zeropp_loco_param: dict[str, Any] | None = _refused(None, _ZEROPP)
    mics_shard_size: int = _refused(-1, _MICS)
    mics_hierarchical_params_gather: bool = _refused(False, _MICS)
    memory_efficient_linear: bool = _key(True, "keep gathered weights out of the autograd graph")
    pipeline_loading_checkpoint: bool = _refused(
        False, "a rank reads its own part only; remove the key"
    )
    override_module_apply: bool = _key(True, "zero.Init: Module.apply sees whole parameters")
    log_trace_cache_warnings: bool = _key(False, "log when the order of use changes")
    enable_sanity_checks: bool = _key(False, "compare what ranks are about to gather each time")
    save_muon_momentum_buffer_in_memory: bool = _refused(
        False, "Muon cannot step on shards; remove the key"
    )
    leaf_module: LeafModuleSection = _part(LeafModuleSection, "modules gathered as one")

    def __post_init__(self) -> None:
        _check_refused(self, "zero_optimization")
        _fold_deprecated(self)
        if self.offload_param.device != "none" and self.stage != 3:
            raise ValueError(
                f"zero_optimization.offload_param needs stage 3, not {self.stage}: only stage 3 "
                "shards parameters; use offload_optimizer or stage 3"
            )
        if self.offload_optimizer.device != "none" and self.stage == 0:
            raise ValueError("zero_optimization.offload_optimizer needs stage 1, 2 or 3, not 0")

    @property
    def overlaps(self) -> bool:
        """Whether collectives run during backward."""
        return self.overlap_comm is not False


def _fold_deprecated(section: ZeroSection) -> None:
    """Let the old switches set the sections that replaced them."""
    pin = section.cpu_offload_use_pin_memory
    pin = True if pin is None else pin
    put: Callable[[str, Any], None] = lambda name, value: object.__setattr__(section, name, value)  # noqa: E731
    if section.cpu_offload and section.offload_optimizer.device == "none":
        put("offload_optimizer", OffloadOptimizerSection(device="cpu", pin_memory=pin))
    if section.cpu_offload_param and section.offload_param.device == "none":
        put("offload_param", OffloadParamSection(device="cpu", pin_memory=pin))
    if section.stage3_gather_fp16_weights_on_model_save:
        put("stage3_gather_16bit_weights_on_model_save", True)


def _needs_path(path: str, device: str, nvme_path: Path | None) -> None:
    if device == "nvme" and nvme_path is None:
        raise ValueError(f"{path}.nvme_path is missing: device 'nvme' needs a folder for its files")
