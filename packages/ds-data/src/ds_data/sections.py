"""The JSON settings that ds-data acts on, as frozen dataclasses."""

# ruff: noqa: RUF009  (`_set` returns a dataclass field, which the rule cannot see)

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ds_data.curriculum import CurriculumScheduler
from ds_data.errors import RuleError
from ds_data.packing import Order


def _set(default: Any, doc: str, **rules: Any) -> Any:
    """A dataclass field with a doc line and rules; a class as default is a factory."""
    metadata = {"doc": doc, **rules}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class ScheduleConfig:
    """Parameters of a difficulty schedule; which are needed depends on its type."""

    total_curriculum_step: int | None = _set(None, "steps from least to most difficulty", ge=1)
    difficulty_step: int | None = _set(None, "difficulties are multiples of this", ge=1)
    root_degree: float | None = _set(None, "degree of the root of fixed_root", gt=0)
    difficulty: list[int] | None = _set(None, "levels of fixed_discrete, in order")
    max_step: list[int] | None = _set(None, "last step of each level but the last")


ScheduleType = Literal["fixed_linear", "fixed_root", "fixed_discrete", "custom"]


@dataclass(frozen=True)
class CurriculumLearningSection:
    """The legacy curriculum: a sequence length handed to forward."""

    enabled: bool = _set(False, "pass curriculum_seqlen to the model's forward")
    curriculum_type: Literal["seqlen"] = _set("seqlen", "what difficulty measures")
    min_difficulty: int | None = _set(None, "difficulty at the start", ge=0)
    max_difficulty: int | None = _set(None, "difficulty at the end", ge=0)
    schedule_type: ScheduleType | None = _set(None, "how difficulty rises with the step")
    schedule_config: ScheduleConfig = _set(ScheduleConfig, "parameters of the schedule")

    def __post_init__(self) -> None:
        if self.enabled:
            CurriculumScheduler(asdict(self))


@dataclass(frozen=True)
class CurriculumMetric:
    """One measure of difficulty, its files and its schedule."""

    index_to_sample_path: str | None = _set(None, "samples of each value, from the analyzer")
    index_to_metric_path: str | None = _set(None, "the values, from the analyzer")
    difficulty_type: Literal["value", "percentile"] = _set(
        "value", "whether difficulty is a value of the metric or a percentage of the samples"
    )
    clustering_type: Literal["schedule_based", "single_cluster"] = _set(
        "schedule_based", "whether hard samples wait, or all take part and are post-processed"
    )
    min_difficulty: int | None = _set(None, "difficulty at the start", ge=0)
    max_difficulty: int | None = _set(None, "difficulty at the end", ge=0)
    schedule_type: ScheduleType | None = _set(None, "how difficulty rises with the step")
    schedule_config: ScheduleConfig = _set(ScheduleConfig, "parameters of the schedule")


@dataclass(frozen=True)
class SamplingCurriculum:
    """The general curriculum: which samples may be drawn."""

    enabled: bool = _set(False, "draw samples by difficulty")
    data_cluster_path: str | None = _set(None, "directory for the members of each cluster")
    curriculum_metrics: dict[str, CurriculumMetric] = _set(dict, "metrics by name")

    def __post_init__(self) -> None:
        for name, metric in self.curriculum_metrics.items() if self.enabled else ():
            try:
                CurriculumScheduler(asdict(metric))
            except RuleError as error:
                raise RuleError(f"curriculum_metrics.{name}: {error}") from error
            if metric.clustering_type == "single_cluster":
                continue
            for key in ("index_to_sample_path", "index_to_metric_path"):
                by_rank = metric.difficulty_type == "percentile" and key == "index_to_metric_path"
                if getattr(metric, key) is None and not by_rank:
                    raise RuleError(
                        f"curriculum_metrics.{name}: clustering_type 'schedule_based' needs {key}"
                    )


@dataclass(frozen=True)
class DynamicBatching:
    """Batches by tokens, with the learning rate that follows their size."""

    enabled: bool = _set(False, "batch by tokens")
    max_tokens: int | None = _set(None, "token budget of a pack", ge=1, size=True)
    metrics_path: str = _set("./", "directory of the sequence lengths; written on the first run")
    lr_scaling_method: Literal["linear", "sqrt", "none"] | None = _set(
        "linear", "how the learning rate follows the batch size; null: not at all"
    )
    sequence_picking_order: Order = _set(
        "dataloader", "the order samples are picked in", aliases=("sentence_picking_order",)
    )
    min_batch_size: int = _set(1, "a pack with fewer samples is left out", ge=1)
    max_batch_size: int | None = _set(None, "a pack is closed at this many samples", ge=1)
    verbose: bool = _set(False, "log how well batches are filled")
    token_count: Literal["padded", "unpadded"] = _set(
        "padded", "whether the budget counts padding (samples times the longest)"
    )
    shuffle_window: int = _set(4096, "samples a bucketed batch is picked from", ge=1)
    drop_last: bool = _set(True, "leave out the last, incomplete batch")
    required_microbatches_of_same_sizes: bool = _set(
        False,
        "all micro-batches of a batch have equally many samples",
        aliases=("required_microbatches_of_same_size",),
    )
    required_microbatches_of_same_lengths: bool = _set(
        False,
        "all micro-batches of a batch are padded to one length",
        aliases=("required_microbatches_of_same_seqlen",),
    )

    def __post_init__(self) -> None:
        if self.enabled and self.max_tokens is None:
            raise RuleError("enabled, but max_tokens is missing")
        if self.max_batch_size is not None and self.max_batch_size < self.min_batch_size:
            raise RuleError(
                f"max_batch_size {self.max_batch_size} is below min_batch_size "
                f"{self.min_batch_size}"
            )


@dataclass(frozen=True)
class DataSampling:
    """How samples are drawn and loaded."""

    enabled: bool = _set(False, "let this section choose the samples")
    num_epochs: int = _set(1000, "most passes over the data", ge=1)
    num_workers: int = _set(0, "worker processes of the data loader", ge=0)
    pin_memory: bool = _set(False, "load into pinned memory")
    curriculum_learning: SamplingCurriculum = _set(SamplingCurriculum, "draw by difficulty")
    dynamic_batching: DynamicBatching = _set(DynamicBatching, "batch by tokens")


@dataclass(frozen=True)
class LTDScheduleConfig:
    """How fast the kept sequence grows."""

    require_steps: int | None = _set(None, "steps from min_value to max_value", ge=1)
    seq_per_step: int = _set(1, "kept lengths are multiples of this", ge=1)


@dataclass(frozen=True)
class LTDSchedule:
    """How many tokens the middle layers keep."""

    min_value: int | None = _set(None, "tokens kept at the start", ge=1)
    max_value: int | None = _set(None, "tokens kept at the end", ge=1)
    schedule_type: Literal["fixed_linear"] = _set("fixed_linear", "how the number rises")
    schedule_config: LTDScheduleConfig = _set(LTDScheduleConfig, "parameters of the schedule")


@dataclass(frozen=True)
class LayerTokenLR:
    """A learning rate by tokens a layer sees."""

    enabled: bool = _set(
        False,
        "a learning rate by layer tokens",
        only=False,
        otherwise="use ds_data.TokenDecayLR",
    )
    total_layer_tokens: int | None = _set(None, "unused while disabled")
    warmup_type: str | None = _set(None, "unused while disabled")
    warmup_layer_tokens: int | None = _set(None, "unused while disabled")


@dataclass(frozen=True)
class RandomLTD:
    """Random layerwise token dropping."""

    enabled: bool = _set(False, "drop tokens in the layers that are wrapped")
    total_layer_num: int | None = _set(None, "layers of the model", ge=1)
    random_ltd_layer_num: int | None = _set(None, "layers that drop tokens", ge=1)
    random_ltd_layer_id: list[int] | None = _set(None, "which layers drop tokens")
    model_mask_name: str | None = _set(None, "keyword of the attention mask")
    sequence_names: list[str] = _set(
        list, "keywords of what runs along the sequence, such as position_ids"
    )
    model_type: Literal["decoder", "encoder"] = _set("decoder", "causal or bidirectional")
    hidden_state_order: Literal["batch_seq_dim", "seq_batch_dim"] = _set(
        "batch_seq_dim", "which dimension of hidden states is which"
    )
    random_ltd_schedule: LTDSchedule = _set(LTDSchedule, "tokens kept by step")
    layer_token_lr_schedule: LayerTokenLR = _set(
        LayerTokenLR,
        "a learning rate by layer tokens",
        aliases=("random_ltd_layer_token_lr_schedule",),
    )

    def __post_init__(self) -> None:
        if not self.enabled:
            return
        schedule = self.random_ltd_schedule
        needed = {
            "total_layer_num": self.total_layer_num,
            "random_ltd_layer_num": self.random_ltd_layer_num,
            "random_ltd_schedule.min_value": schedule.min_value,
            "random_ltd_schedule.max_value": schedule.max_value,
            "random_ltd_schedule.schedule_config.require_steps": (
                schedule.schedule_config.require_steps
            ),
        }
        missing = [name for name, value in needed.items() if value is None]
        if missing:
            raise RuleError(f"enabled, but {', '.join(missing)} is missing")
        ids = self.random_ltd_layer_id
        if ids is not None and len(ids) != self.random_ltd_layer_num:
            raise RuleError(
                f"random_ltd_layer_id names {len(ids)} layers, random_ltd_layer_num says "
                f"{self.random_ltd_layer_num}"
            )


@dataclass(frozen=True)
class DataRouting:
    """Which tokens pass which layers."""

    enabled: bool = _set(False, "let this section choose the tokens")
    random_ltd: RandomLTD = _set(RandomLTD, "random layerwise token dropping")


@dataclass(frozen=True)
class DataEfficiencySection:
    """Data sampling and data routing."""

    enabled: bool = _set(False, "use the data efficiency library")
    seed: int = _set(1234, "of all random choices", ge=0)
    data_sampling: DataSampling = _set(DataSampling, "which samples")
    data_routing: DataRouting = _set(DataRouting, "which tokens")


@dataclass(frozen=True)
class ProgressiveLayerDropSection:
    """Drop more layers as training proceeds."""

    enabled: bool = _set(False, "pass progressive_layer_drop and pld_theta to forward")
    theta: float = _set(0.5, "share of layers kept in the end", ge=0, le=1)
    gamma: float = _set(0.001, "how fast the share falls with the step", ge=0)
