"""Runs schedules on a clock instead of on a model: who waits for whom, how long, holding what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ds_pipeline.errors import ScheduleError
from ds_pipeline.instructions import (
    BackwardInput,
    BackwardPass,
    BackwardWeight,
    BufferOpInstruction,
    ForwardPass,
    PipeInstruction,
    RecvActivation,
    RecvGrad,
    SendActivation,
    SendGrad,
)

Key = tuple[str, int, int]
"""What a message holds ("activation" or "gradient"), the virtual stage it is for, micro-batch."""


@dataclass(frozen=True)
class Costs:
    """How long each part takes, for one chunk of a stage.

    Attributes:
        input, weight: the two parts of a backward pass.
        travel: from one stage to the next.
        whole: a backward pass in one piece; None: as long as its parts.
    """

    forward: float = 1.0
    input: float = 1.0
    weight: float = 1.0
    travel: float = 0.0
    whole: float | None = None

    def of(self, kind: type[PipeInstruction]) -> float:
        """The time of one computation."""
        if kind is ForwardPass:
            return self.forward
        if kind is BackwardInput:
            return self.input
        if kind is BackwardWeight:
            return self.weight
        return self.input + self.weight if self.whole is None else self.whole


@dataclass(frozen=True)
class Span:
    """A computation of a stage from `start` to `stop`."""

    stage: int
    kind: str
    micro_batch: int
    chunk: int
    start: float
    stop: float


@dataclass
class Timeline:
    """What came out.

    Attributes:
        spans: all computations, by stage in order.
        stages: number of stages.
        peak: the most micro-batches (times chunks) that each stage held at once.
        unit: of times: `s` in recorded runs, nothing where they are made up.
    """

    spans: list[Span] = field(default_factory=list)
    stages: int = 0
    peak: list[int] = field(default_factory=list)
    unit: str = ""

    @property
    def length(self) -> float:
        """From the first start to the last stop."""
        if not self.spans:
            return 0.0
        return max(span.stop for span in self.spans) - min(span.start for span in self.spans)

    @property
    def busy(self) -> list[float]:
        """Computing time of each stage."""
        total = [0.0] * self.stages
        for span in self.spans:
            total[span.stage] += span.stop - span.start
        return total

    @property
    def bubble(self) -> float:
        """The share of all stages' time that they are idle."""
        room = self.length * self.stages
        return 1.0 - sum(self.busy) / room if room else 0.0


def simulate(
    plans: Sequence[Sequence[PipeInstruction]], costs: Costs | None = None, *, chunks: int = 1
) -> Timeline:
    """Run one list of instructions a stage until all are done.

    Sends do not wait; a receive waits for its message.

    Raises:
        ScheduleError: stages that wait for each other, a message that is never sent or never
            received, or a computation without what it needs.
    """
    costs = costs or Costs()
    runs = [_StageRun(stage, plan, len(plans), chunks) for stage, plan in enumerate(plans)]
    messages: dict[Key, float] = {}
    ready = list(range(len(plans)))
    waiting: dict[Key, int] = {}
    while ready:
        run = runs[ready.pop()]
        blocked = run.advance(messages, costs, waiting, ready)
        if blocked is not None:
            waiting[blocked] = run.stage
    _check_end(runs, messages)
    spans = [span for run in runs for span in run.spans]
    return Timeline(spans, len(plans), [run.peak for run in runs])


class _StageRun:
    """One stage on its way through its instructions."""

    def __init__(
        self, stage: int, plan: Sequence[PipeInstruction], stages: int, chunks: int
    ) -> None:
        self.stage, self._stages, self._last = stage, stages, stages * chunks - 1
        self.todo = [step for step in plan if isinstance(step, BufferOpInstruction)]
        self.position, self._clock, self._held, self.peak = 0, 0.0, 0, 0
        self.spans: list[Span] = []
        self._state: dict[tuple[int, int], str] = {}

    def advance(
        self, messages: dict[Key, float], costs: Costs, waiting: dict[Key, int], ready: list[int]
    ) -> Key | None:
        """Go on until done (None) or until a message is missing (its key)."""
        while self.position < len(self.todo):
            step = self.todo[self.position]
            kind, micro, chunk = type(step), step.buffer_id, step.chunk
            place = chunk * self._stages + self.stage
            if kind in (RecvActivation, RecvGrad):
                key = ("activation" if kind is RecvActivation else "gradient", place, micro)
                if key not in messages:
                    return key
                self._clock = max(self._clock, messages.pop(key))
                self._move(step, "inputs" if kind is RecvActivation else "gradients")
            elif kind in (SendActivation, SendGrad):
                forward = kind is SendActivation
                key = (
                    ("activation", place + 1, micro) if forward else ("gradient", place - 1, micro)
                )
                self._sendable(step, forward)
                if key in messages:
                    raise ScheduleError(f"stage {self.stage} sends {step} twice")
                messages[key] = self._clock + costs.travel
                if key in waiting:
                    ready.append(waiting.pop(key))
            elif kind in (ForwardPass, BackwardPass, BackwardInput, BackwardWeight):
                self._compute(step, place, costs.of(kind))
            self.position += 1
        return None

    def _compute(self, step: BufferOpInstruction, place: int, time: float) -> None:
        kind = type(step)
        if kind is ForwardPass:
            self._move(step, "forward", has_input=place == 0)
            self._held += 1
            self.peak = max(self.peak, self._held)
        elif kind is BackwardWeight:
            self._move(step, "weight")
        else:
            self._move(step, "input" if kind is BackwardInput else "full", place == self._last)
        if kind in (BackwardPass, BackwardWeight):
            self._held -= 1
        start, self._clock = self._clock, self._clock + time
        span = Span(self.stage, kind.__name__, step.buffer_id, step.chunk, start, self._clock)
        self.spans.append(span)

    def _move(self, step: BufferOpInstruction, to: str, has_input: bool = False) -> None:
        """Follow one micro-batch through its states."""
        key = (step.buffer_id, step.chunk)
        state = self._state.get(key, "new")
        allowed = {
            "inputs": ("new",),
            "forward": ("new",) if has_input else ("inputs",),
            "gradients": ("forward",),
            "input": ("forward",) if has_input else ("gradients",),
            "full": ("forward",) if has_input else ("gradients",),
            "weight": ("input",),
        }[to]
        if state not in allowed:
            raise ScheduleError(
                f"stage {self.stage}: {step} at position {self.position} comes after '{state}', "
                f"needs '{' or '.join(allowed)}'"
            )
        self._state[key] = to

    def _sendable(self, step: BufferOpInstruction, forward: bool) -> None:
        state = self._state.get((step.buffer_id, step.chunk), "new")
        if state not in (("forward",) if forward else ("input", "full", "weight")):
            raise ScheduleError(f"stage {self.stage}: {step} comes before it is computed")

    def waits(self) -> str | None:
        """What this stage waits for, if it is not done."""
        if self.position == len(self.todo):
            return None
        return f"stage {self.stage} waits in {self.todo[self.position]}"


def _check_end(runs: Sequence[_StageRun], messages: dict[Key, float]) -> None:
    stuck = [line for run in runs if (line := run.waits()) is not None]
    if stuck:
        raise ScheduleError("the schedule hangs: " + "; ".join(stuck))
    if messages:
        kind, place, micro = next(iter(messages))
        raise ScheduleError(f"{kind} of micro-batch {micro} for place {place} is never received")
