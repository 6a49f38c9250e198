"""In which order a stage computes: pure functions of (stage, stages, micro-batches).

GPipe: Huang et al., NeurIPS 2019. 1F1B: Narayanan et al., "PipeDream", SOSP 2019. Interleaved:
Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters", SC 2021.
ZB-H1: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024.
"""

from __future__ import annotations

from typing import NamedTuple

from ds_pipeline.errors import ScheduleError
from ds_pipeline.instructions import (
    BackwardInput,
    BackwardPass,
    BackwardWeight,
    BufferOpInstruction,
    ForwardPass,
)


class Work(NamedTuple):
    """One computation of a stage: `kind(buffer_id=micro_batch, chunk=chunk)`."""

    kind: type[BufferOpInstruction]
    micro_batch: int
    chunk: int = 0


Order = list[Work]


def inference(stage: int, stages: int, micro_batches: int, chunks: int = 1) -> Order:
    """Forward only."""
    return [Work(ForwardPass, *unit) for unit in _units(stages, micro_batches, chunks)]


def gpipe(stage: int, stages: int, micro_batches: int, chunks: int = 1) -> Order:
    """All forward passes, then all backward passes: simple, and holds every micro-batch."""
    _single(chunks, "gpipe")
    forward = [Work(ForwardPass, micro) for micro in range(micro_batches)]
    return forward + [Work(BackwardPass, micro) for micro in range(micro_batches)]


def one_f_one_b(stage: int, stages: int, micro_batches: int, chunks: int = 1) -> Order:
    """Backward as soon as possible: at most `stages - stage` micro-batches are held."""
    _single(chunks, "1f1b")
    ahead = min(stages - stage - 1, micro_batches)
    order = [Work(ForwardPass, micro) for micro in range(ahead)]
    for micro in range(micro_batches - ahead):
        order += [Work(ForwardPass, micro + ahead), Work(BackwardPass, micro)]
    return order + [
        Work(BackwardPass, micro) for micro in range(micro_batches - ahead, micro_batches)
    ]


def interleaved(stage: int, stages: int, micro_batches: int, chunks: int = 1) -> Order:
    """1F1B over several chunks of layers a stage: the bubble shrinks by the number of chunks.

    Micro-batches go in rounds of `stages`. An incomplete last round is planned as a whole one and
    then thinned out: what is left of an order that cannot hang cannot hang either.
    """
    whole = -(-micro_batches // stages) * stages if chunks > 1 else micro_batches
    forward = _units(stages, whole, chunks)
    backward = [(micro, chunks - 1 - chunk) for micro, chunk in forward]
    total = len(forward)
    ahead = min(2 * (stages - stage - 1) + (chunks - 1) * stages, total)
    order = [Work(ForwardPass, *unit) for unit in forward[:ahead]]
    for number in range(total - ahead):
        order.append(Work(ForwardPass, *forward[ahead + number]))
        order.append(Work(BackwardPass, *backward[number]))
    order += [Work(BackwardPass, *unit) for unit in backward[total - ahead :]]
    return [work for work in order if work.micro_batch < micro_batches]


def zb_h1(stage: int, stages: int, micro_batches: int, chunks: int = 1) -> Order:
    """1F1B whose weight gradients wait where that fills what would be idle.

    As published, stage `s` splits every backward pass and lags `s` weight passes behind, which
    lets every stage hold as much as the first one of 1F1B does: `stages` micro-batches. Between
    its first `s` and its last `stages - s` micro-batches it computes without a pause, and nobody
    waits for it; there a pass in one piece takes no longer, and less memory traffic. So only the
    passes at both ends are split: idle time and memory are those of the published order.
    """
    _single(chunks, "zb-h1")
    order: Order = []
    waiting: list[int] = []
    whole = range(stage, micro_batches - (stages - stage if stage else 0))
    for work in one_f_one_b(stage, stages, micro_batches):
        if work.kind is ForwardPass or work.micro_batch in whole:
            order.append(work)
            continue
        order.append(Work(BackwardInput, work.micro_batch))
        waiting.append(work.micro_batch)
        if len(waiting) > stage:
            order.append(Work(BackwardWeight, waiting.pop(0)))
    return order + [Work(BackwardWeight, micro) for micro in waiting]


def _units(stages: int, micro_batches: int, chunks: int) -> list[tuple[int, int]]:
    """(micro-batch, chunk) in forward order: rounds of `stages` micro-batches, chunk by chunk."""
    if chunks == 1:
        return [(micro, 0) for micro in range(micro_batches)]
    return [
        (micro, chunk)
        for first in range(0, micro_batches, stages)
        for chunk in range(chunks)
        for micro in range(first, min(first + stages, micro_batches))
    ]


def _single(chunks: int, name: str) -> None:
    if chunks != 1:
        raise ScheduleError(
            f"schedule '{name}' takes one chunk a stage, the model has {chunks}: use 'interleaved'"
        )
