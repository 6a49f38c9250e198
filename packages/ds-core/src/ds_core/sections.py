"""The JSON settings that ds-core acts on, as frozen dataclasses.

Each field carries its one-line `doc` in the metadata, and the rules a reader of JSON applies:
`ge`, `gt`, `le`, `lt` (range), `auto` ("auto" means the default), `spellings` (other words for a
value), `endless` (infinity means None), `only` (the one value that can be served) with `otherwise`
(what to do instead).
"""

# ruff: noqa: RUF009  (`setting` returns a dataclass field, which the rule cannot see)

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from typing import Any, Literal

Dtype = Literal["fp32", "fp16", "bf16"]

_SPELLINGS = {
    "float32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "half": "fp16",
    "bfloat16": "bf16",
    "bfp16": "bf16",
    "torch.float32": "fp32",
    "torch.float16": "fp16",
    "torch.bfloat16": "bf16",
}


def setting(default: Any, doc: str, **rules: Any) -> Any:
    """A dataclass field with a doc line and rules; a callable default is a factory.

    Typed Any, as `dataclasses.field` is for its caller.
    """
    metadata = {"doc": doc, **rules}
    if default is MISSING:
        return field(metadata=metadata)
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class General:
    """The top-level settings that belong to no section."""

    gradient_clipping: float | None = setting(
        1.0, "largest global gradient norm; 0 or null leaves gradients as they are", ge=0
    )
    prescale_gradients: bool = setting(False, "divide gradients before they are summed over ranks")
    gradient_predivide_factor: float = setting(
        1.0, "divide by this before the sum and by the rest after it, when prescaling", gt=0
    )
    communication_data_type: Dtype | None = setting(
        None, "dtype of gradients on the wire; null: that of the gradient", spellings=_SPELLINGS
    )
    sparse_gradients: bool = setting(False, "reduce gradients of sparse embeddings as sparse")
    gradient_allreduce_op: str = setting(
        "mean",
        "how gradients of ranks are combined",
        only="mean",
        otherwise="multiply the loss to get another scale",
    )
    managed_gradient_accumulation: bool = setting(
        True,
        "the engine counts micro-batches",
        only=True,
        otherwise="engine.set_gradient_accumulation_boundary() decides by hand",
    )
    steps_per_print: int | None = setting(
        None, "log progress every so many steps; null or Infinity: never", ge=1, endless=True
    )
    dump_state: bool = setting(False, "log the resolved configuration once at the start")
    memory_breakdown: bool = setting(False, "log memory use at the ends of forward, backward, step")
    log_level: Literal["debug", "info", "warning", "error", "critical"] | None = setting(
        None, "level of the deepspeed logger; null leaves it alone"
    )
    dataloader_drop_last: bool = setting(
        False, "leave out the last batch of an epoch if it is not full"
    )
    zero_allow_untested_optimizer: bool = setting(
        False, "a permission that is always given here: any elementwise optimizer may be sharded"
    )
    zero_force_ds_cpu_optimizer: bool = setting(
        True, "a demand that is never made here: any optimizer may step on the CPU"
    )
    disable_allgather: bool = setting(
        False,
        "collect updated parameters by broadcasts",
        only=False,
        otherwise="all-gather is the one way here",
    )
    seq_parallel_communication_data_type: Dtype = setting(
        "fp32",
        "dtype of gradients between sequence-parallel ranks",
        spellings=_SPELLINGS,
        only="fp32",
        otherwise="nothing installed splits sequences",
    )
    sequence_parallel_size: int = setting(
        1,
        "ranks that share one sequence",
        ge=1,
        only=1,
        otherwise="nothing installed splits sequences",
    )
    use_data_before_expert_parallelism: bool = setting(
        False,
        "order of data and expert groups",
        only=False,
        otherwise="nothing installed builds expert groups",
    )
    graph_harvesting: bool = setting(
        False,
        "capture CUDA graphs of the optimizer",
        only=False,
        otherwise="torch.compile the model instead",
    )


@dataclass(frozen=True)
class FP16Section:
    """Training in float16 with fp32 master weights and a loss scale."""

    enabled: bool = setting(False, "train in float16", auto=True)
    auto_cast: bool = setting(False, "cast floating-point inputs of the model to float16")
    loss_scale: float = setting(0.0, "static loss scale; 0 means dynamic", ge=0, auto=True)
    initial_scale_power: int = setting(
        16, "the dynamic scale starts at 2 to this power", ge=0, le=120, auto=True
    )
    loss_scale_window: int = setting(
        1000, "good steps before the dynamic scale doubles", ge=1, auto=True
    )
    hysteresis: int = setting(
        2, "overflows it takes before the dynamic scale halves", ge=1, auto=True
    )
    consecutive_hysteresis: bool = setting(False, "a good step refills the hysteresis")
    min_loss_scale: float = setting(1.0, "the dynamic scale never goes below", ge=0, auto=True)
    fp16_master_weights_and_grads: bool = setting(
        False, "keep master weights and gradients in float16 too"
    )


@dataclass(frozen=True)
class BF16Section:
    """Training in bfloat16 with fp32 master weights."""

    enabled: bool = setting(False, "train in bfloat16", auto=True)
    immediate_grad_update: bool = setting(
        False, "add each gradient to its fp32 sum as soon as it exists: always so here"
    )
    check_grad_overflow: bool = setting(
        True,
        "skip a step whose gradients are not finite",
        only=True,
        otherwise="such a step is always skipped, because it would ruin the weights",
    )
    bf16_master_weights_and_grads: bool = setting(
        False, "keep master weights and gradients in bfloat16 too"
    )
    bf16_optimizer_states: bool = setting(False, "keep optimizer moments in bfloat16")


@dataclass(frozen=True)
class DataTypesSection:
    """Dtypes beside those of the weights."""

    grad_accum_dtype: Dtype | None = setting(
        None, "dtype gradients accumulate in; null means fp32", spellings=_SPELLINGS, auto=True
    )


@dataclass(frozen=True)
class TorchAutocastSection:
    """Forward under `torch.autocast`, with weights left in their own dtype."""

    enabled: bool = setting(False, "run forward under torch.autocast")
    dtype: Literal["bf16", "fp16"] = setting(
        "bf16", "dtype of the autocast region", spellings=_SPELLINGS
    )
    lower_precision_safe_modules: list[str] | None = setting(
        None,
        "module classes whose gradients may be reduced in the lower dtype",
        only=None,
        otherwise="use communication_data_type, which holds for all gradients",
    )


@dataclass(frozen=True)
class OptimizerSection:
    """The optimizer that the engine makes when the client gives none."""

    type: str = setting(MISSING, "name of the optimizer, in any case: AdamW, Lamb, Muon, ...")
    params: dict[str, Any] = setting(dict, "keyword arguments of the optimizer")
    legacy_fusion: bool = setting(
        False,
        "old fused fp16 wrapper",
        only=False,
        otherwise="leave it out",
    )


@dataclass(frozen=True)
class SchedulerSection:
    """The learning-rate schedule that the engine makes when the client gives none."""

    type: str | None = setting(MISSING, "class name of the schedule; null for none")
    params: dict[str, Any] = setting(dict, "keyword arguments of the schedule")


@dataclass(frozen=True)
class ParallelWriteSection:
    """Who writes what of a checkpoint."""

    pipeline_stage: bool = setting(
        False, "each pipeline stage writes its own layers: always so here"
    )


@dataclass(frozen=True)
class WriterSection:
    """How checkpoint files are written."""

    type: str | None = setting(
        None, "'fast' writes through ds-aio (direct I/O); null and other names: buffered files"
    )
    io_buffer_size: int = setting(
        64 * 2**20, "bytes the fast writer has in flight at once", gt=0, size=True
    )
    io_buffer_double: bool = setting(
        True, "fill one buffer while another is written: always so with the fast writer"
    )
    show_statistics: bool = setting(False, "log bytes and seconds of each save")
    data_parallel: Literal["replica", "socket", "machine"] | None = setting(
        None, "ranks that share the writing of replicated state: all of them, always"
    )
    decoupled: bool = setting(False, "save in the background while training goes on")
    io_multiplier: int = setting(
        1,
        "further writers for each rank",
        ge=1,
        only=1,
        otherwise="one writer a rank keeps the device busy",
    )


@dataclass(frozen=True)
class CheckpointSection:
    """How training state is saved and loaded."""

    tag_validation: Literal["Ignore", "Warn", "Fail"] = setting(
        "Warn", "what to do if ranks give different tags"
    )
    load_universal: bool = setting(
        False, "the checkpoint to load may be of another layout: always so here"
    )
    use_node_local_storage: bool = setting(
        False,
        "the folder is not shared: every node keeps its own ranks' files",
        auto=True,
        only=False,
        otherwise="save to a folder that all nodes share",
    )
    checkpoint_serialization: bool = setting(
        True, "pickle tensors into files; either way nothing is ever pickled here"
    )
    parallel_write: ParallelWriteSection = setting(
        ParallelWriteSection, "who writes what of a checkpoint"
    )
    writer: WriterSection | None = setting(None, "how checkpoint files are written")


@dataclass(frozen=True)
class ActivationCheckpointingSection:
    """What `checkpointing.checkpoint` keeps and recomputes."""

    partition_activations: bool = setting(
        False, "split kept activations over the ranks that share a model"
    )
    cpu_checkpointing: bool = setting(False, "keep activations in main memory")
    contiguous_memory_optimization: bool = setting(
        False, "keep activations in buffers allocated once"
    )
    number_checkpoints: int | None = setting(
        None, "checkpoints a forward makes, to size those buffers", ge=1
    )
    synchronize_checkpoint_boundary: bool = setting(False, "wait for the device at each checkpoint")
    profile: bool = setting(False, "log forward and backward time of each checkpoint")
