"""The entry points of dynamic batching, under their well-known names."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Literal

from ds_data.batch_lr import Scaling, VariableBatchLR
from ds_data.loader import LoaderOptions, VariableBatchLoader
from ds_data.packing import BatchPlan, BatchRules, Ints, Order, plan_batches

log = logging.getLogger(__name__)


def batch_by_seqlens(
    seqlens: Sequence[int] | Ints,
    max_tokens: int,
    sequence_ids_per_mb: Sequence[int] | None = None,
    min_batch_size: int = 1,
    max_batch_size: int | None = None,
    sequence_picking_order: Order = "dataloader",
    effective_batch_size: int = 1,
    required_microbatches_of_same_size: bool = False,
    verbose: bool = False,
    seed: int | None = None,
    *,
    required_microbatches_of_same_seqlen: bool = False,
    token_count: Literal["padded", "unpadded"] = "padded",
    drop_last: bool = True,
) -> tuple[list[tuple[int, list[int]]], list[int], list[int]]:
    """Distribute samples over micro-batches of at most `max_tokens`.

    Args:
        sequence_ids_per_mb: the samples to use; all if None.
        effective_batch_size: micro-batches in an effective batch over all ranks and steps.

    Returns:
        `(batch, sample ids)` of each micro-batch, the number of samples of each effective batch,
        and the longest sample of each effective batch.
    """
    rules = BatchRules(
        max_tokens=max_tokens,
        order=sequence_picking_order,
        count=token_count,
        min_batch_size=min_batch_size,
        max_batch_size=max_batch_size,
        same_size=required_microbatches_of_same_size,
        same_length=required_microbatches_of_same_seqlen,
        drop_last=drop_last,
        seed=seed or 0,
    )
    plan = plan_batches(seqlens, rules, micro_batches=effective_batch_size, ids=sequence_ids_per_mb)
    _warn(plan.skipped.too_long, "longer than the limit")
    report(plan, verbose=verbose)
    micro_batches = [
        (index // effective_batch_size, plan.micro_batch(index))
        for index in range(len(plan.edges) - 1)
    ]
    return micro_batches, plan.batch_sizes.tolist(), plan.batch_longest.tolist()


def report(plan: BatchPlan, *, verbose: bool) -> None:
    """Log what batching leaves out (too long samples apart) and, if `verbose`, how full it is."""
    _warn(plan.skipped.too_few, "in micro-batches below min_batch_size")
    _warn(plan.skipped.last, "in the incomplete last batch")
    if verbose:
        log.info(
            "%d batches of %d micro-batches, %d samples, %.1f %% of padded tokens are real",
            len(plan),
            plan.micro_batches,
            len(plan.ids),
            100 * plan.useful_share(),
        )


def _warn(ids: Ints, rule: str) -> None:
    if len(ids):
        log.warning("%d samples left out: %s (first: %s)", len(ids), rule, ids[:8].tolist())


def variable_batches(
    dataset: Any,  # map-style
    lengths: Sequence[int] | Ints,
    rules: BatchRules,
    schedule_or_optimizer: Any,  # an optimizer, or an LR scheduler over one
    *,
    base_batch_size: float,
    micro_batches: int = 1,
    lr_scaling: Scaling | None = "linear",
    rank: int = 0,
    world_size: int = 1,
    ids: Sequence[int] | None = None,
    options: LoaderOptions | None = None,
) -> tuple[VariableBatchLoader, VariableBatchLR]:
    """A loader of token-budget batches, and the learning rate that follows their sizes."""
    loader = VariableBatchLoader(
        dataset,
        lengths,
        rules,
        micro_batches=micro_batches,
        rank=rank,
        world_size=world_size,
        ids=ids,
        options=options,
    )
    rate = VariableBatchLR(
        schedule_or_optimizer,
        base_batch_size=base_batch_size,
        batch_sizes=loader.batch_sizes,
        method=lr_scaling,
        first_batch=loader.first_batch,
    )
    return loader, rate


def get_dataloader_and_lr_scheduler_for_variable_batch_size(
    dataset: Any,
    dataset_seqlens: Sequence[int] | Ints,
    max_tokens: int,
    effective_batch_size: int,
    dataset_filter_ids: Sequence[int] | None = None,
    lr_scaling_method: Scaling | None = "linear",
    min_batch_size: int = 1,
    max_batch_size: int | None = None,
    sequence_picking_order: Order = "dataloader",
    dataloader_batch_size: int = 1,
    dataloader_rank: int = 0,
    dataloader_num_replicas: int = 1,
    dataloader_num_workers: int = 0,
    dataloader_collate_fn: Callable[[list[Any]], Any] | None = None,
    dataloader_pin_memory: bool = False,
    lr_scheduler_or_optimizer: Any = None,
    required_microbatches_of_same_size: bool = False,
    required_microbatches_of_same_seqlen: bool = False,
    sample_padding_fn: Callable[[Any, int], Any] | None = None,
    verbose: bool = False,
    seed: int | None = None,
    *,
    token_count: Literal["padded", "unpadded"] = "padded",
    drop_last: bool = True,
    window: int = 4096,
) -> tuple[VariableBatchLoader, VariableBatchLR | None, dict[str, Any]]:
    """As `variable_batches`, with the arguments of document and config.

    A micro-batch holds `dataloader_batch_size` packs of `max_tokens`, that is at most
    `dataloader_batch_size * max_tokens` tokens; an effective batch holds `effective_batch_size`
    packs over all ranks and steps, and is also the base of the learning rate.

    Returns:
        The loader; the LR scheduler (None without `lr_scheduler_or_optimizer`); and, with the
        lengths, the arguments of another loader of the same batches.
    """
    packs = dataloader_batch_size
    rules = BatchRules(
        max_tokens=max_tokens * packs,
        max_length=max_tokens,
        order=sequence_picking_order,
        count=token_count,
        min_batch_size=min_batch_size * packs,
        max_batch_size=None if max_batch_size is None else max_batch_size * packs,
        same_size=required_microbatches_of_same_size,
        same_length=required_microbatches_of_same_seqlen,
        drop_last=drop_last,
        window=window,
        seed=seed or 0,
    )
    settings: dict[str, Any] = {
        "micro_batches": effective_batch_size // packs,
        "rank": dataloader_rank,
        "world_size": dataloader_num_replicas,
        "ids": dataset_filter_ids,
        "options": LoaderOptions(
            collate_fn=dataloader_collate_fn,
            pad_sample=sample_padding_fn,
            num_workers=dataloader_num_workers,
            pin_memory=dataloader_pin_memory,
        ),
    }
    loader = VariableBatchLoader(dataset, dataset_seqlens, rules, **settings)
    plan = loader.plan  # made now: what it refuses, it refuses here
    if dataloader_rank == 0:
        report(plan, verbose=verbose)
    rate = None
    if lr_scheduler_or_optimizer is not None:
        rate = VariableBatchLR(
            lr_scheduler_or_optimizer,
            base_batch_size=effective_batch_size,
            batch_sizes=loader.batch_sizes,
            method=lr_scaling_method,
            first_batch=loader.first_batch,
        )
    return loader, rate, {"dataset": dataset, "rules": rules, **settings}
