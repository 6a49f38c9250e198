"""Profiling inside a training loop: start, one forward pass, stop, report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from ds_profiler.assemble import Measured, assemble, count_parameters, outside
from ds_profiler.calibrate import cost_of_interception
from ds_profiler.clock import clock_for
from ds_profiler.count import FlopCounter
from ds_profiler.errors import UsageError
from ds_profiler.modules import require_module
from ds_profiler.report.text import aggregated_report, text_report
from ds_profiler.report.write import write_text
from ds_profiler.result import ModuleProfile, Profile
from ds_profiler.rules import RuleBook, default_rules
from ds_profiler.timing import ModuleTimer
from ds_profiler.units import (
    duration_to_string,
    macs_to_string,
    number_to_string,
    params_to_string,
)


@dataclass
class RunFacts:
    """What a training loop knows about the run, for the report."""

    samples: int | None = None
    world_size: int = 1
    data_parallel: int = 1
    model_parallel: int = 1
    step_seconds: float = 0.0


class FlopsProfiler:
    """Counts and times what `model` does between `start_profile` and `stop_profile`.

    Several passes in between add up; a backward pass in between is counted too. Times leave out
    what the profiler itself costs: its bookkeeping is measured and taken off. (The function
    `profile` times in a pass of its own.) Also a context manager, which stops when the block
    raises; when only the model's forward raises, the profiler stops by itself.

    Args:
        model: the model; nothing is set on it.
        ds_engine: facts of the run that the report should show, a `RunFacts`; None for one process.
        recompute_fwd_factor: accepted for compatibility; recomputed work is counted, not guessed.
        rules: what operators cost.
    """

    def __init__(
        self,
        model: nn.Module,
        ds_engine: RunFacts | None = None,
        recompute_fwd_factor: float = 0.0,
        *,
        rules: RuleBook | None = None,
        peak_flops: float | None = None,
    ) -> None:
        require_module(model)
        self.model = model
        self.facts = ds_engine
        self.recompute_fwd_factor = recompute_fwd_factor
        self._rules = rules or default_rules()
        self._peak_flops = peak_flops
        self._running: _Running | None = None
        self._failure: _Running | None = None
        self._profile: Profile | None = None

    def start_profile(self, ignore_list: Sequence[type[nn.Module]] | None = None) -> None:
        """Begin to count; forgets an earlier profile. `ignore_list`: module types to leave out."""
        self.end_profile()
        self._running = _Running(self.model, self._rules, tuple(ignore_list or ()), self._failed)
        self._running.start()

    def stop_profile(self) -> None:
        """Stop counting; the numbers stay readable. Does nothing if not started."""
        self._sweep()
        if self._running is None:
            return
        self._running.stop()
        self._profile = self._running.result(self.facts, self._peak_flops)
        self._running = None

    def reset_profile(self) -> None:
        """Forget all numbers; goes on counting if started."""
        ignored = self._running.ignored if self._running else None
        self._profile = None
        if ignored is not None:
            self.start_profile(list(ignored))

    def end_profile(self) -> None:
        """Stop and forget everything. (Nothing was ever added to the model.)"""
        self._sweep()
        if self._running is not None:
            self._running.stop()
        self._running = None
        self._profile = None

    def __enter__(self) -> FlopsProfiler:
        self.start_profile()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop_profile()

    @property
    def result(self) -> Profile:
        """The profile; readable while running too."""
        if self._running is not None:
            return self._running.result(self.facts, self._peak_flops)
        if self._profile is None:
            raise UsageError("nothing was profiled: call start_profile() and run the model first")
        return self._profile if self.facts is None else replace(self._profile, **asdict(self.facts))

    def get_total_flops(self, as_string: bool = False) -> int | str:
        """Floating-point operations of the forward passes."""
        flops = self.result.flops
        return number_to_string(flops) if as_string else flops

    def get_total_macs(self, as_string: bool = False) -> int | str:
        """Multiply-accumulates of the forward passes."""
        macs = self.result.macs
        return macs_to_string(macs) if as_string else macs

    def get_total_params(self, as_string: bool = False) -> int | str:
        """Parameters, each counted once."""
        params = count_parameters(self.model)[0]
        return params_to_string(params) if as_string else params

    def get_total_duration(self, as_string: bool = False) -> float | str:
        """Seconds of the forward passes."""
        seconds = self.result.root.forward_seconds
        return duration_to_string(seconds) if as_string else seconds

    def print_model_profile(
        self,
        profile_step: int = 1,
        module_depth: int = -1,
        top_modules: int = 1,
        detailed: bool = True,
        output_file: str | Path | None = None,
    ) -> None:
        """Write the text report to `output_file`, or to standard output."""
        report = text_report(
            self.result,
            profile_step=profile_step,
            module_depth=module_depth,
            top_modules=top_modules,
            detailed=detailed,
        )
        write_text(report, output_file)

    def print_model_aggregated_profile(self, module_depth: int = -1, top_modules: int = 1) -> None:
        """Write the section by depth to standard output."""
        text = aggregated_report(self.result, module_depth=module_depth, top_modules=top_modules)
        write_text(text + "\n", None)

    def _failed(self) -> None:
        """The model's forward raised: leave nothing behind."""
        if self._running is not None:
            self._running.stop_in_hook()
            self._failure, self._running = self._running, None

    def _sweep(self) -> None:
        """Remove what could not be removed while PyTorch was going through its hooks."""
        if self._failure is not None:
            self._failure.stop()
            self._failure = None


class _Running:
    """One profile being taken."""

    def __init__(
        self, model: nn.Module, rules: RuleBook, ignored: tuple[type[nn.Module], ...], failed: Any
    ) -> None:
        self.ignored = ignored
        self._model = model
        self._counter = FlopCounter(model, rules, on_failure=failed)
        first = next(model.parameters(), None)
        self._device = torch.device("cpu") if first is None else first.device
        self._timer = ModuleTimer(
            self._counter.index, clock_for(self._device, overhead=self._overhead)
        )
        self._per_operator = 0.0

    def start(self) -> None:
        self._per_operator = cost_of_interception(time.perf_counter)
        self._timer.start()
        self._counter.start()

    def stop(self) -> None:
        self._timer.stop()
        self._counter.stop()

    def stop_in_hook(self) -> None:
        in_hook = not self._counter.runs_last()
        self._timer.stop(in_hook=in_hook)
        self._counter.stop(in_hook=in_hook)

    def result(self, facts: RunFacts | None, peak_flops: float | None) -> Profile:
        forward, backward = self._timer.forward_seconds(), self._timer.backward_seconds()
        tally = self._counter.tally
        root = assemble(
            self._counter.index, tally, Measured(forward, backward), ignored=self.ignored
        )
        return Profile(
            root=root,
            uncounted=dict(tally.unknown),
            outside=outside(tally),
            device=str(self._device),
            peak_flops=peak_flops,
            **_facts(root, facts),
        )

    def _overhead(self) -> float:
        return self._counter.seconds + self._counter.operators * self._per_operator


def _facts(root: ModuleProfile, facts: RunFacts | None) -> dict[str, Any]:
    times = {
        "forward_seconds": root.forward_seconds,
        "backward_seconds": root.backward_seconds,
    }
    return times if facts is None else {**times, **asdict(facts)}
