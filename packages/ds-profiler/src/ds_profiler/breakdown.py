"""Where the time of a training step goes."""

from __future__ import annotations

from typing import Any, Protocol

from ds_profiler.clock import Clock, HostClock
from ds_profiler.errors import UsageError

PHASES = ("forward", "backward", "step")


class CommEvent(Protocol):
    """A finished collective (`ds_core.contracts.CommEvent`)."""

    @property
    def waited(self) -> float: ...


class PhaseTimes:
    """Collects marks by phase and tells milliseconds by step.

    A step's `backward_allreduce` is the time its backward pass was blocked on collectives, and
    `backward_inner` the rest of it; communication that ran beside the computation is in neither.
    Marks are read as late as possible: with a device clock, only once the next step has ended.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[str, Any] = {}
        self._spans: list[tuple[str, Any, Any]] = []
        self._waited = 0.0
        self._closed: list[tuple[int, list[tuple[str, Any, Any]], float]] = []

    def begin(self, phase: str) -> None:
        """A phase begins."""
        if phase not in PHASES:
            raise UsageError(f"phase {phase!r}: known are {', '.join(PHASES)}")
        self._open[phase] = self._clock.mark()

    def end(self, phase: str) -> None:
        """The phase ends; may happen several times a step."""
        begin = self._open.pop(phase, None)
        if begin is not None:
            self._spans.append((phase, begin, self._clock.mark()))

    def on_comm(self, event: CommEvent) -> None:
        """A collective has finished (an observer of the communicator)."""
        if "backward" in self._open:
            self._waited += event.waited

    def close_step(self, samples: int) -> None:
        """The step is over; `samples` were trained on so far."""
        self._closed.append((samples, self._spans, self._waited))
        self._spans, self._waited = [], 0.0

    def ready(self, *, wait: bool = False) -> list[tuple[int, dict[str, float]]]:
        """Finished steps that can be read without waiting: samples so far, ms by phase."""
        held_back = 0 if wait or isinstance(self._clock, HostClock) else 1
        count = max(0, len(self._closed) - held_back)
        done, self._closed = self._closed[:count], self._closed[count:]
        return [(samples, self._read(spans, waited)) for samples, spans, waited in done]

    def _read(self, spans: list[tuple[str, Any, Any]], waited: float) -> dict[str, float]:
        sums = dict.fromkeys(PHASES, 0.0)
        for phase, begin, end in spans:
            sums[phase] += 1000.0 * self._clock.between(begin, end)
        blocked = min(1000.0 * waited, sums["backward"])
        return {
            "forward": sums["forward"],
            "backward": sums["backward"],
            "backward_inner": sums["backward"] - blocked,
            "backward_allreduce": blocked,
            "step": sums["step"],
        }
