"""What the JSON sections of this package attach to a training engine.

The engine calls those methods of a hook that exist (`ds_core.contracts.Hook`); a disabled section
makes no hook and so costs nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ds_profiler.breakdown import PhaseTimes
from ds_profiler.clock import Clock, clock_for
from ds_profiler.comms_log import CommsLog
from ds_profiler.monitors import Monitor
from ds_profiler.profiler import FlopsProfiler, RunFacts
from ds_profiler.report import write_report
from ds_profiler.report.write import form_of
from ds_profiler.sections import (
    CommsLoggerSection,
    FlopsProfilerSection,
    TimersSection,
    WallClockBreakdownSection,
)
from ds_profiler.timers import ThroughputTimer

logger = logging.getLogger(__name__)


class StepEvent(Protocol):
    """The facts of a finished step that these hooks read (`ds_core.contracts.StepEvent`)."""

    @property
    def step(self) -> int: ...
    @property
    def samples(self) -> int: ...


class Context(Protocol):
    """What a hook may look at while it is made."""

    @property
    def module(self) -> nn.Module: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def train_batch_size(self) -> int: ...
    @property
    def micro_batch_size(self) -> int: ...
    @property
    def sections(self) -> Mapping[str, Any]: ...
    @property
    def monitors(self) -> list[Any]: ...
    @property
    def add_comm_observer(self) -> Callable[[Callable[[Any], None]], Callable[[], None]]: ...


def make_flops_hook(section: FlopsProfilerSection, context: Context) -> FlopsHook | None:
    """For section `flops_profiler`."""
    return FlopsHook(section, context) if section.enabled else None


def make_breakdown_hook(
    section: WallClockBreakdownSection, context: Context
) -> BreakdownHook | None:
    """For section `wall_clock_breakdown`."""
    return _phase_times(context, log=context.rank == 0) if section.enabled else None


def make_profiled_times_hook(
    section: FlopsProfilerSection, context: Context
) -> BreakdownHook | None:
    """For section `flops_profiler`: the times of the phases for the monitors, without a log."""
    breakdown = context.sections.get("wall_clock_breakdown")
    if not section.enabled or not context.monitors or (breakdown and breakdown.enabled):
        return None
    return _phase_times(context, log=False)


def make_comms_hook(section: CommsLoggerSection, context: Context) -> CommsHook | None:
    """For section `comms_logger`."""
    if not section.enabled:
        return None
    log = CommsLog(
        () if section.prof_all else section.prof_ops or ["(none)"],
        verbose=section.verbose,
        by_label=section.debug,
    )
    return CommsHook(log, context.add_comm_observer(log))


def make_throughput_hook(section: TimersSection, context: Context) -> ThroughputHook | None:
    """For section `timers`."""
    if not section.throughput.enabled:
        return None
    cuda = _device(context.module).type == "cuda"
    wait = torch.cuda.synchronize if section.throughput.synchronized and cuda else None
    silent = None if context.rank == 0 else (lambda line: None)
    timer = ThroughputTimer(
        context.train_batch_size, steps_per_output=10, synchronize=wait, logging_fn=silent
    )
    return ThroughputHook(timer)


class FlopsHook:
    """Profiles the first micro-batch of step `profile_step`, and reports on rank 0."""

    key = "flops_profiler"

    def __init__(self, section: FlopsProfilerSection, context: Context) -> None:
        self._section = section
        self._rank = context.rank
        self._clock = clock_for(_device(context.module))
        self._facts = RunFacts(
            samples=context.micro_batch_size,
            world_size=context.world_size,
            data_parallel=context.world_size,
        )
        peak = None if section.peak_tflops is None else section.peak_tflops * 1e12
        self.profiler = FlopsProfiler(context.module, self._facts, peak_flops=peak)
        self._step = 1
        self._state = "waiting"
        self._step_begin: Any = None

    def before_forward(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Start at the profiled step."""
        if self._state == "waiting" and self._step == self._section.profile_step:
            self._state = "running"
            self.profiler.start_profile()
        return args, kwargs

    def after_backward(self) -> None:
        """Stop after the first micro-batch."""
        self._stop()

    def before_step(self) -> None:
        """Begin to time the update."""
        self._stop()
        if self._state == "counted":
            self._step_begin = self._clock.mark()

    def after_step(self, event: StepEvent) -> None:
        """Report."""
        self._step = event.step + 1
        if self._state != "counted" or self._step_begin is None:
            return
        self._state = "reported"
        self._facts.step_seconds = self._clock.between(self._step_begin, self._clock.mark())
        if self._rank == 0:
            section = self._section
            file = section.output_file
            write_report(
                self.profiler.result,
                file,
                profile_step=section.profile_step,
                module_depth=section.module_depth,
                top_modules=section.top_modules,
                detailed=section.detailed,
                form=None if file is None else form_of(file, unknown="text"),
            )
        self.profiler.end_profile()

    def close(self) -> None:
        """Leave nothing behind."""
        self.profiler.end_profile()

    def _stop(self) -> None:
        if self._state == "running":
            self._state = "counted"
            self.profiler.stop_profile()


class BreakdownHook:
    """Times forward, backward and step, and what communication kept the backward pass waiting.

    Nothing waits for the device: with device times, a step is reported when the next has ended.

    Attributes:
        times: the marks.
        last: milliseconds by phase of the last reported step.
    """

    key = "wall_clock_breakdown"

    def __init__(self, clock: Clock, monitors: Sequence[Monitor], *, log: bool) -> None:
        self.times = PhaseTimes(clock)
        self.last: dict[str, float] = {}
        self.stop_watching: Callable[[], None] = lambda: None
        self._monitors, self._log = monitors, log

    def before_forward(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Begin forward."""
        self.times.begin("forward")
        return args, kwargs

    def after_forward(self, output: Any) -> None:
        """End forward."""
        self.times.end("forward")

    def before_backward(self, loss: Tensor) -> None:
        """Begin backward."""
        self.times.begin("backward")

    def after_backward(self) -> None:
        """End backward."""
        self.times.end("backward")

    def before_step(self) -> None:
        """Begin the update."""
        self.times.begin("step")

    def after_step(self, event: StepEvent) -> None:
        """End the update; report what is ready."""
        self.times.end("step")
        self.times.close_step(event.samples)
        self._report(self.times.ready())

    def close(self) -> None:
        """Report what is left."""
        self.stop_watching()
        self._report(self.times.ready(wait=True))

    def _report(self, steps: list[tuple[int, dict[str, float]]]) -> None:
        for samples, phases in steps:
            self.last = phases
            events = [
                (f"Train/Samples/elapsed_time_ms_{name}", value, samples)
                for name, value in phases.items()
            ]
            for monitor in self._monitors:
                monitor.write_events(events)
            if self._log:
                line = " | ".join(f"{name}: {value:.2f}" for name, value in phases.items())
                logger.info("time (ms) | %s", line)


class CommsHook:
    """Keeps a log of collectives until the engine closes. `log.log_summary()` tells it."""

    key = "comms_logger"

    def __init__(self, log: CommsLog, remove: Callable[[], None]) -> None:
        self.log, self._remove = log, remove

    def close(self) -> None:
        """Stop listening; the log stays readable."""
        self._remove()


class ThroughputHook:
    """Measures samples a second over whole steps, from the first forward to the update."""

    key = "timers"

    def __init__(self, timer: ThroughputTimer) -> None:
        self.timer = timer
        self._open = False

    def before_forward(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Begin a step."""
        if not self._open:
            self._open = True
            self.timer.start()
        return args, kwargs

    def after_step(self, event: StepEvent) -> None:
        """End a step."""
        self._open = False
        self.timer.stop(global_step=True)


def _phase_times(context: Context, *, log: bool) -> BreakdownHook:
    hook = BreakdownHook(clock_for(_device(context.module)), context.monitors, log=log)
    hook.stop_watching = context.add_comm_observer(hook.times.on_comm)
    return hook


def _device(module: nn.Module) -> torch.device:
    first = next(module.parameters(), None)
    return torch.device("cpu") if first is None else first.device
