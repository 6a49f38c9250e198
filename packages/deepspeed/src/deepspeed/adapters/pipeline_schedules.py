"""Schedules as classes that yield instructions step by step, as programs subclass them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

from ds_pipeline.instructions import (
    BackwardPass,
    BufferOpInstruction,
    ForwardPass,
    LoadMicroBatch,
    OptimizerStep,
    PipeInstruction,
    ReduceGrads,
)
from ds_pipeline.schedules import plan, plan_inference

Steps = Iterator[list[PipeInstruction]]


class PipeSchedule(ABC):
    """What one stage does in a pass; iterating yields lists of instructions."""

    def __init__(self, micro_batches: int, stages: int, stage_id: int) -> None:
        self.micro_batches, self.stages, self.stage_id = micro_batches, stages, stage_id
        self.prev_stage, self.next_stage = stage_id - 1, stage_id + 1
        self._steps: Steps | None = None

    @abstractmethod
    def steps(self) -> Steps:
        """Instructions, one list a step."""

    def num_pipe_buffers(self) -> int:
        """How many micro-batches the stage holds at once."""
        return self.micro_batches

    @property
    def stage(self) -> int:
        return self.stage_id

    @property
    def num_stages(self) -> int:
        return self.stages

    @property
    def num_micro_batches(self) -> int:
        return self.micro_batches

    @property
    def is_first_stage(self) -> bool:
        return self.stage_id == 0

    @property
    def is_last_stage(self) -> bool:
        return self.stage_id == self.stages - 1

    def __iter__(self) -> PipeSchedule:
        self._steps = None
        return self

    def __next__(self) -> list[PipeInstruction]:
        if self._steps is None:
            self._steps = self.steps()
        return next(self._steps)

    def _buffered(self, work: Iterable[PipeInstruction]) -> Steps:
        """One list a computation, with what comes before and after it; buffers are reused."""
        buffers = self.num_pipe_buffers()
        group: list[PipeInstruction] = []
        computed = False
        for step in work:
            if isinstance(step, BufferOpInstruction):
                opens = type(step).__name__.startswith(("Recv", "Load", "Forward", "Backward"))
                if computed and opens:
                    yield group
                    group, computed = [], False
                computed |= isinstance(step, (ForwardPass, BackwardPass))
                step = type(step)(step.buffer_id % buffers)
            group.append(step)
        yield group


class TrainSchedule(PipeSchedule):
    """One training batch: one forward, one backward in turn."""

    def steps(self) -> Steps:
        return self._buffered(plan("1f1b", self.stage_id, self.stages, self.micro_batches))

    def num_pipe_buffers(self) -> int:
        return max(2, min(self.stages - self.stage_id, self.micro_batches))


class InferenceSchedule(PipeSchedule):
    """Forward passes only."""

    def steps(self) -> Steps:
        return self._buffered(plan_inference(self.stage_id, self.stages, self.micro_batches))

    def num_pipe_buffers(self) -> int:
        return 2


class DataParallelSchedule(PipeSchedule):
    """Accumulation without stages."""

    def steps(self) -> Steps:
        for number in range(self.micro_batches):
            work = [LoadMicroBatch(0), ForwardPass(0), BackwardPass(0)]
            if number == self.micro_batches - 1:
                yield [*work, ReduceGrads(), OptimizerStep()]
            else:
                yield list(work)

    def num_pipe_buffers(self) -> int:
        return 1


def is_even(number: int) -> bool:
    """True for 0, 2, 4 ..."""
    return number % 2 == 0
