"""Dynamic batching and curriculum sampling under their old signatures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import DataLoader, Dataset

from deepspeed.config import Config
from deepspeed.config.faults import Findings
from deepspeed.config.validate import read_section
from ds_core.errors import ConfigError
from ds_core.hooks import HookList
from ds_data import (
    CurriculumLoader,
    CurriculumRule,
    CurriculumSampler,
    CurriculumScheduler,
    Shares,
    VariableBatchLoader,
    VariableBatchLR,
    get_dataloader_and_lr_scheduler_for_variable_batch_size,
    sample_lengths,
)
from ds_data.hooks import StateHook
from ds_data.sections import CurriculumMetric, DataEfficiencySection, DynamicBatching


class VariableBatchSizeLR(VariableBatchLR):
    """`ds_data.VariableBatchLR` with the old order of arguments."""

    def __init__(
        self,
        lr_scheduler: Any,
        base_batch_size: int,
        batch_sizes: Sequence[int],
        dataloader: Any,
        lr_scaling_method: Any = "linear",
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            lr_scheduler,
            base_batch_size=base_batch_size,
            batch_sizes=batch_sizes,
            method=lr_scaling_method,
        )
        self.dataloader = dataloader
        if last_epoch >= 0:
            self.step(last_epoch)


def lr_scheduler_for_variable_batch_size(
    base_batch_size: int,
    batch_sizes: Sequence[int],
    dataloader: Any,
    lr_scheduler_or_optimizer: Any,
    lr_scaling_method: Any = "linear",
    verbose: bool = False,
) -> VariableBatchSizeLR:
    """A learning rate that follows `batch_sizes`, over a schedule or an optimizer."""
    return VariableBatchSizeLR(
        lr_scheduler_or_optimizer, base_batch_size, batch_sizes, dataloader, lr_scaling_method
    )


class _Packs(Dataset[Any]):
    """Samples by (id, length to pad to)."""

    def __init__(self, dataset: Any, pad: Callable[[Any, int], Any] | None) -> None:
        self._dataset, self._pad = dataset, pad

    def __getitem__(self, item: tuple[int, int]) -> Any:
        index, length = item
        sample = self._dataset[index]
        return sample if self._pad is None else self._pad(sample, length)


class _Dealt:
    """The packs of one rank, `together` at a time."""

    def __init__(
        self, packs: Sequence[tuple[int, Sequence[int]]], longest: Sequence[int], together: int
    ) -> None:
        self._packs, self._longest, self._together = packs, longest, together

    def __len__(self) -> int:
        return len(self._packs) // self._together

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for begin in range(0, len(self) * self._together, self._together):
            packs = self._packs[begin : begin + self._together]
            yield [(i, int(self._longest[batch])) for batch, ids in packs for i in ids]


def dataloader_for_variable_batch_size(
    dataset: Any,
    microbatch_ids: Sequence[tuple[int, Sequence[int]]],
    batch_max_seqlens: Sequence[int],
    dataloader_rank: int = 0,
    dataloader_batch_size: int = 1,
    dataloader_num_replicas: int = 1,
    dataloader_collate_fn: Callable[[list[Any]], Any] | None = None,
    dataloader_num_workers: int = 2,
    dataloader_pin_memory: bool = False,
    required_microbatches_of_same_seqlen: bool = False,
    sample_padding_fn: Callable[[Any, int], Any] | None = None,
) -> tuple[DataLoader[Any], dict[str, Any]]:
    """A loader over packs that were made before, and the arguments it was made with.

    `ds_data.VariableBatchLoader` plans, loads and resumes in one.
    """
    if required_microbatches_of_same_seqlen and sample_padding_fn is None:
        raise ConfigError("required_microbatches_of_same_seqlen needs sample_padding_fn")
    mine = list(microbatch_ids)[dataloader_rank::dataloader_num_replicas]
    pad = sample_padding_fn if required_microbatches_of_same_seqlen else None
    arguments: dict[str, Any] = {
        "dataset": _Packs(dataset, pad),
        "batch_sampler": _Dealt(mine, batch_max_seqlens, dataloader_batch_size),
        "collate_fn": dataloader_collate_fn,
        "num_workers": dataloader_num_workers,
        "pin_memory": dataloader_pin_memory,
    }
    return DataLoader(**arguments), arguments


def get_dataloader_and_lr_scheduler_for_variable_batch_size_deepspeed(
    dataset: Any,
    engine: Any,
    dataset_seqlens: Sequence[int] | None = None,
    dataset_filter_ids: Sequence[int] | None = None,
    dataloader_collate_fn: Callable[[list[Any]], Any] | None = None,
    sample_padding_fn: Callable[[Any, int], Any] | None = None,
    batch_seqlens_fn: Callable[[Any], Any] | None = None,
) -> tuple[VariableBatchLoader, VariableBatchLR | None, dict[str, Any]]:
    """Dynamic batching as the engine's `data_efficiency.data_sampling.dynamic_batching` says.

    Args:
        dataset_seqlens: length of each sample; None reads them from `metrics_path`, or measures
            them with `batch_seqlens_fn` and writes them there.
        dataset_filter_ids: the samples to use; all if None.

    Returns:
        The loader of this rank, the schedule (set it as `engine.lr_scheduler`), and, with the
        lengths, the arguments of another loader of the same batches. The engine's checkpoints
        hold the place of the loader: call this before `load_checkpoint` to resume in mid-epoch.
    """
    section, dynamic = _dynamic_batching(engine.configuration)
    sampling = section.data_sampling
    if dataset_seqlens is None:
        dataset_seqlens = sample_lengths(  # type: ignore[assignment]
            dataset,
            dynamic.metrics_path,
            batch_seqlens_fn,
            collate_fn=dataloader_collate_fn,
            device=str(engine.device),
        )
    assert dataset_seqlens is not None
    assert dynamic.max_tokens is not None  # the section refuses it
    batch, data = engine.configuration.batch, engine.groups.data
    pipeline = _is_pipeline(engine)
    loader, schedule, built = get_dataloader_and_lr_scheduler_for_variable_batch_size(
        dataset=dataset,
        dataset_seqlens=dataset_seqlens,
        max_tokens=dynamic.max_tokens,
        effective_batch_size=batch.train,
        dataset_filter_ids=dataset_filter_ids,
        lr_scaling_method=dynamic.lr_scaling_method,
        min_batch_size=dynamic.min_batch_size,
        max_batch_size=dynamic.max_batch_size,
        sequence_picking_order=dynamic.sequence_picking_order,
        dataloader_batch_size=batch.micro,
        dataloader_rank=data.rank,
        dataloader_num_replicas=data.world_size,
        dataloader_num_workers=sampling.num_workers,
        dataloader_collate_fn=dataloader_collate_fn,
        dataloader_pin_memory=sampling.pin_memory,
        lr_scheduler_or_optimizer=engine.lr_scheduler or engine.optimizer,
        required_microbatches_of_same_size=dynamic.required_microbatches_of_same_sizes or pipeline,
        required_microbatches_of_same_seqlen=dynamic.required_microbatches_of_same_lengths
        or pipeline,
        sample_padding_fn=sample_padding_fn,
        verbose=dynamic.verbose and data.rank == 0,
        seed=section.seed,
        token_count=dynamic.token_count,
        drop_last=dynamic.drop_last,
        window=dynamic.shuffle_window,
    )
    keep_state(engine, "dynamic_batching", loader)
    return loader, schedule, built


def keep_state(engine: Any, key: str, owner: Any) -> None:
    """Put `owner.state_dict()` into the engine's checkpoints from now on."""
    others = [hook for hook in engine.hooks.hooks if hook.key != key]
    engine.hooks = HookList([*others, StateHook(key, owner)])


def _dynamic_batching(configuration: Config) -> tuple[DataEfficiencySection, DynamicBatching]:
    section = data_efficiency(configuration)
    dynamic = section.data_sampling.dynamic_batching
    if not (section.enabled and dynamic.enabled):
        raise ConfigError(
            "data_efficiency.data_sampling.dynamic_batching.enabled is false: enable it, and "
            "data_efficiency"
        )
    return section, dynamic


def _is_pipeline(engine: Any) -> bool:
    """A pipeline needs one activation shape a batch."""
    return any(kind.__name__ == "PipelineModule" for kind in type(engine.module).__mro__)


def data_efficiency(configuration: Config) -> DataEfficiencySection:
    """The section, with its defaults where the configuration has none."""
    found = configuration.section("data_efficiency")
    assert isinstance(found, DataEfficiencySection)
    return found


def curriculum_rules(section: DataEfficiencySection, num_samples: int) -> dict[str, CurriculumRule]:
    """The rules of `data_sampling.curriculum_learning`, with the files they name opened."""
    curriculum = section.data_sampling.curriculum_learning
    if not (section.enabled and section.data_sampling.enabled and curriculum.enabled):
        return {}
    return {
        name: _rule(metric, num_samples) for name, metric in curriculum.curriculum_metrics.items()
    }


def _rule(metric: CurriculumMetric, num_samples: int) -> CurriculumRule:
    schedule = CurriculumScheduler(
        {
            "min_difficulty": metric.min_difficulty,
            "max_difficulty": metric.max_difficulty,
            "schedule_type": metric.schedule_type,
            "schedule_config": vars(metric.schedule_config),
        }
    )
    if metric.clustering_type == "single_cluster":
        return CurriculumRule(schedule=schedule)
    return CurriculumRule.from_files(
        schedule,
        index_to_sample=metric.index_to_sample_path or "",
        index_to_metric=metric.index_to_metric_path or "",
        difficulty=metric.difficulty_type,
        num_samples=num_samples,
    )


def curriculum_sampler(
    section: DataEfficiencySection, num_samples: int, shares: Shares, *, drop_last: bool = True
) -> CurriculumSampler:
    """The sampler that `data_sampling` describes."""
    sampling = section.data_sampling
    return CurriculumSampler(
        num_samples,
        shares,
        curriculum_rules(section, num_samples),
        num_epochs=sampling.num_epochs,
        drop_last=drop_last,
        seed=section.seed,
        cluster_path=sampling.curriculum_learning.data_cluster_path,
    )


def curriculum_loader(
    dataset: Any,
    section: DataEfficiencySection,
    shares: Shares,
    *,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    drop_last: bool = True,
) -> CurriculumLoader:
    """The loader that `deepspeed_io` makes where `data_sampling` is enabled."""
    return CurriculumLoader(
        dataset,
        curriculum_sampler(section, len(dataset), shares, drop_last=drop_last),
        collate_fn=collate_fn,
        num_workers=section.data_sampling.num_workers,
        pin_memory=section.data_sampling.pin_memory,
    )


class DeepSpeedDataSampler(CurriculumSampler):
    """`ds_data.CurriculumSampler` made from the raw `data_efficiency` dictionary."""

    def __init__(
        self,
        data_efficiency_config: Mapping[str, Any],
        one_epoch_total_samples: int,
        micro_batch_size: int,
        data_parallel_rank: int,
        data_parallel_size: int,
        data_parallel_group: Any,
        gradient_accumulation_steps: int,
        global_rank: int,
        drop_last: bool = True,
    ) -> None:
        findings = Findings()
        section = read_section(
            DataEfficiencySection, data_efficiency_config, "data_efficiency", findings
        )
        if findings.faults or section is None:
            raise ConfigError("; ".join(str(fault) for fault in findings.faults))
        shares = Shares(
            micro_batch_size=micro_batch_size,
            rank=data_parallel_rank,
            world_size=data_parallel_size,
            accumulation_steps=gradient_accumulation_steps,
        )
        super().__init__(
            one_epoch_total_samples,
            shares,
            curriculum_rules(section, one_epoch_total_samples),
            num_epochs=section.data_sampling.num_epochs,
            drop_last=drop_last,
            seed=section.seed,
            cluster_path=section.data_sampling.curriculum_learning.data_cluster_path,
        )

    def get_next_global_batch(self) -> list[int]:
        """The samples of one curriculum step, for all ranks."""
        return self.next_global_batch().tolist()  # type: ignore[no-any-return]

    def set_custom_curriculum_learning_schedule(
        self, schedule_func_dict: Mapping[str, Callable[[int], int]]
    ) -> None:
        """The function from step to difficulty of each `custom` metric."""
        set_custom_schedules(self, schedule_func_dict)


def set_custom_schedules(
    sampler: CurriculumSampler, functions: Mapping[str, Callable[[int], int]]
) -> None:
    """Give metrics of type `custom` their function from step to difficulty."""
    for metric, function in functions.items():
        if metric not in sampler.rules:
            known = ", ".join(sampler.rules) or "none"
            raise ConfigError(f"{metric!r} is no curriculum metric; there are {known}")
        sampler.rules[metric].schedule.set_custom_get_difficulty(function)
