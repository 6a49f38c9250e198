"""From the order of computations to the list of instructions, with what travels between stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ds_pipeline import orders
from ds_pipeline.errors import ScheduleError
from ds_pipeline.instructions import (
    BackwardInput,
    BackwardPass,
    BackwardWeight,
    ForwardPass,
    LoadMicroBatch,
    OptimizerStep,
    PipeInstruction,
    RecvActivation,
    RecvGrad,
    ReduceGrads,
    ReduceTiedGrads,
    SendActivation,
    SendGrad,
)

MakeOrder = Callable[[int, int, int, int], orders.Order]

SCHEDULES: dict[str, MakeOrder] = {
    "gpipe": orders.gpipe,
    "1f1b": orders.one_f_one_b,
    "interleaved": orders.interleaved,
    "zb-h1": orders.zb_h1,
}
"""The schedules for training, by name."""


def plan(
    name: str, stage: int, stages: int, micro_batches: int, *, chunks: int = 1
) -> list[PipeInstruction]:
    """What `stage` of `stages` does in one training step under a schedule.

    Examples:
        >>> plan("1f1b", 0, 2, 1)[:3]
        [LoadMicroBatch(buffer_id=0), ForwardPass(buffer_id=0), SendActivation(buffer_id=0)]

    Raises:
        ScheduleError: an unknown name, or sizes that do not fit.
    """
    if name not in SCHEDULES:
        raise ScheduleError(f"unknown schedule {name!r}; known: {', '.join(SCHEDULES)}")
    _check(stage, stages, micro_batches, chunks)
    order = SCHEDULES[name](stage, stages, micro_batches, chunks)
    ending = [ReduceTiedGrads(), ReduceGrads(), OptimizerStep()]
    return [*lower(order, stage, stages, chunks=chunks), *ending]


def plan_inference(
    stage: int, stages: int, micro_batches: int, *, chunks: int = 1
) -> list[PipeInstruction]:
    """What `stage` of `stages` does to evaluate `micro_batches`."""
    _check(stage, stages, micro_batches, chunks)
    order = orders.inference(stage, stages, micro_batches, chunks)
    return list(lower(order, stage, stages, chunks=chunks))


def lower(
    order: orders.Order, stage: int, stages: int, *, chunks: int = 1
) -> Iterator[PipeInstruction]:
    """Put loads, receives and sends around each computation."""
    for kind, micro, chunk in order:
        place = chunk * stages + stage
        first, last = place == 0, place == stages * chunks - 1
        if kind is ForwardPass:
            if not first:
                yield RecvActivation(micro, chunk=chunk)
            if first or last:
                yield LoadMicroBatch(micro, chunk=chunk)
            yield ForwardPass(micro, chunk=chunk)
            if not last:
                yield SendActivation(micro, chunk=chunk)
        elif kind in (BackwardPass, BackwardInput):
            if not last:
                yield RecvGrad(micro, chunk=chunk)
            yield kind(micro, chunk=chunk)
            if not first:
                yield SendGrad(micro, chunk=chunk)
        else:
            assert kind is BackwardWeight
            yield BackwardWeight(micro, chunk=chunk)


def _check(stage: int, stages: int, micro_batches: int, chunks: int) -> None:
    if not 0 <= stage < stages:
        raise ScheduleError(f"stage {stage} is not one of {stages}")
    if not isinstance(micro_batches, int) or micro_batches < 1:
        raise ScheduleError(f"{micro_batches} micro-batches: there must be at least one, whole")
    if chunks < 1 or (chunks > 1 and stages == 1):
        raise ScheduleError(f"{chunks} chunks a stage need at least 2 stages, there are {stages}")
