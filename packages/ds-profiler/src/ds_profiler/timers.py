"""Named stopwatches, and a meter of samples a second."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ds_profiler.clock import Clock, HostClock
from ds_profiler.errors import UsageError
from ds_profiler.memory import memory_line

logger = logging.getLogger(__name__)


class Stopwatch:
    """Adds up the time between `start` and `stop`, in milliseconds; does not wait for a device."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self._clock = clock
        self._begin: Any = None
        self._spans: list[tuple[Any, Any]] = []
        self._records: list[float] = []

    @property
    def started(self) -> bool:
        """Whether it is running."""
        return self._begin is not None

    def start(self) -> None:
        """Begin a span."""
        if self.started:
            raise UsageError(f"timer {self.name!r} has already been started")
        self._begin = self._clock.mark()

    def stop(self, reset: bool = False, record: bool = False) -> None:
        """End the span. `reset` drops earlier ones; `record` keeps it for `mean`."""
        if not self.started:
            raise UsageError(f"timer {self.name!r} has not been started")
        span = (self._begin, self._clock.mark())
        self._begin = None
        if reset:
            self._spans.clear()
        self._spans.append(span)
        if record:
            self._records.append(self._milliseconds([span]))

    def elapsed(self, reset: bool = True) -> float:
        """Milliseconds of all spans so far; a running one is included and goes on."""
        spans = list(self._spans)
        if self.started:
            now = self._clock.mark()
            spans.append((self._begin, now))
        total = self._milliseconds(spans)
        if reset:
            self._spans.clear()
            if self.started:
                self._begin = now
        self._records.append(total)
        return total

    def mean(self) -> float:
        """Mean of what was recorded, by `stop(record=True)` or by `elapsed`."""
        return sum(self._records) / len(self._records) if self._records else 0.0

    def reset(self) -> None:
        """Forget everything and stop."""
        self._begin = None
        self._spans.clear()
        self._records.clear()

    def _milliseconds(self, spans: Iterable[tuple[Any, Any]]) -> float:
        return 1000.0 * sum(self._clock.between(begin, end) for begin, end in spans)


class SynchronizedWallClockTimer:
    """A group of stopwatches by name: `timers("forward").start()`.

    Args:
        clock: how time is taken; host time by default. `CudaClock` tells the device's time.
        synchronize: called before each mark (`torch.cuda.synchronize`) if host times should
            include the device's work; None never waits.
        rank: this process's rank, for `log`.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        synchronize: Callable[[], None] | None = None,
        rank: int = 0,
    ) -> None:
        plain = clock or HostClock()
        self._clock = plain if synchronize is None else _Waiting(plain, synchronize)
        self._timers: dict[str, Stopwatch] = {}
        self._rank = rank

    def __call__(self, name: str) -> Stopwatch:
        if name not in self._timers:
            self._timers[name] = Stopwatch(name, self._clock)
        return self._timers[name]

    def has_timer(self, name: str) -> bool:
        """Whether `name` was used."""
        return name in self._timers

    def get_timers(self) -> dict[str, Stopwatch]:
        """All stopwatches by name."""
        return self._timers

    @staticmethod
    def memory_usage() -> str:
        """Memory in use, in one line."""
        return memory_line()

    def log(
        self,
        names: Sequence[str],
        normalizer: float = 1.0,
        reset: bool = True,
        memory_breakdown: bool = False,
        ranks: Sequence[int] | None = None,
    ) -> None:
        """Log the milliseconds of `names`, divided by `normalizer`, on `ranks` (default: 0)."""
        _positive(normalizer)
        times = {
            name: self._timers[name].elapsed(reset=reset) / normalizer
            for name in names
            if name in self._timers
        }
        if self._rank not in (ranks or [0]):
            return
        line = " | ".join(f"{name}: {value:.2f}" for name, value in times.items())
        logger.info("time (ms) | %s%s", line, f" | {memory_line()}" if memory_breakdown else "")

    def get_mean(
        self, names: Sequence[str], normalizer: float = 1.0, reset: bool = True
    ) -> dict[str, float]:
        """Mean recorded milliseconds by name, divided by `normalizer`."""
        _positive(normalizer)
        means = {n: self._timers[n].mean() / normalizer for n in names if n in self._timers}
        if reset:
            for name in means:
                self._timers[name].reset()
        return means


class ThroughputTimer:
    """Samples (and tokens) a second over whole steps.

    `start()` before each micro-batch, `stop(global_step=...)` after it, true after the last one
    of a step. The rate is samples of whole steps over their time, so it does not depend on how
    many micro-batches a step has or how often it is reported.

    Args:
        batch_size: samples a whole step trains on, over all micro-batches and ranks.
        start_step: steps to leave out as warm-up.
        steps_per_output: report every so many steps; None never.
        tokens_per_batch: tokens a step trains on, if known.
        clock: seconds; `time.perf_counter` unless a test says otherwise.
        synchronize: called before each reading if the device's work should be waited for.
        logging_fn: gets the report line.
    """

    def __init__(
        self,
        batch_size: int,
        *,
        start_step: int = 2,
        steps_per_output: int | None = None,
        tokens_per_batch: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
        synchronize: Callable[[], None] | None = None,
        logging_fn: Callable[[str], None] | None = None,
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"batch_size={batch_size}: a step trains on at least one sample")
        self.batch_size, self.tokens_per_batch = batch_size, tokens_per_batch
        self.start_step, self.steps_per_output = start_step, steps_per_output
        self.global_step_count = 0
        self.epoch_count = 0
        self._clock, self._synchronize = clock, synchronize
        self._log = logging_fn or (lambda line: logger.info("%s", line))
        self._begin: float | None = None
        self._step_seconds = 0.0
        self._total_seconds = 0.0
        self._since_report = (0, 0.0)

    def update_epoch_count(self) -> None:
        """Count an epoch, for the report line."""
        self.epoch_count += 1

    def start(self) -> None:
        """Before a micro-batch."""
        self._begin = self._now()

    def stop(self, global_step: bool = False, report_speed: bool = True) -> None:
        """After a micro-batch; `global_step` if it was the last of its step."""
        if self._begin is None:
            return
        self._step_seconds += self._now() - self._begin
        self._begin = None
        if global_step:
            self._close_step(report_speed)

    def avg_samples_per_sec(self) -> float:
        """Samples a second since the warm-up; 0 before."""
        counted = self.global_step_count - self.start_step
        return _rate(self.batch_size * counted, self._total_seconds) if counted > 0 else 0.0

    def avg_tokens_per_sec(self) -> float:
        """Tokens a second since the warm-up; 0 before, or if their number is not known."""
        return self.avg_samples_per_sec() / self.batch_size * (self.tokens_per_batch or 0)

    def _close_step(self, report_speed: bool) -> None:
        self.global_step_count += 1
        seconds, self._step_seconds = self._step_seconds, 0.0
        if self.global_step_count > self.start_step:
            self._total_seconds += seconds
            steps, time_passed = self._since_report
            self._since_report = (steps + 1, time_passed + seconds)
        due = self.steps_per_output and self.global_step_count % self.steps_per_output == 0
        if due and report_speed and self._since_report[0]:
            self._report()

    def _report(self) -> None:
        steps, seconds = self._since_report
        self._since_report = (0, 0.0)
        tokens = f", tokens/s: {self.avg_tokens_per_sec():.1f}" if self.tokens_per_batch else ""
        self._log(
            f"epoch={self.epoch_count}, step={self.global_step_count}, "
            f"samples/s: {self.avg_samples_per_sec():.2f} on average, "
            f"{_rate(steps * self.batch_size, seconds):.2f} of late{tokens}"
        )

    def _now(self) -> float:
        if self._synchronize is not None:
            self._synchronize()
        return self._clock()


class NoopTimer:
    """Has the methods of a timer group and does nothing."""

    class Timer:
        """A stopwatch that does nothing."""

        def start(self) -> None:
            """Nothing."""

        def stop(self, **kwargs: Any) -> None:
            """Nothing."""

        def reset(self) -> None:
            """Nothing."""

        def elapsed(self, **kwargs: Any) -> float:
            """0."""
            return 0.0

        def mean(self) -> float:
            """0."""
            return 0.0

    def __init__(self) -> None:
        self._timer = self.Timer()

    def __call__(self, name: str) -> NoopTimer.Timer:
        return self._timer

    def has_timer(self, name: str) -> bool:
        """True: any name will do."""
        return True

    def get_timers(self) -> dict[str, Any]:
        """None are kept."""
        return {}

    def log(self, names: Sequence[str], **kwargs: Any) -> None:
        """Nothing."""

    def get_mean(self, names: Sequence[str], **kwargs: Any) -> dict[str, float]:
        """Nothing."""
        return {}


class _Waiting:
    """A clock that waits for the device before each mark."""

    def __init__(self, clock: Clock, synchronize: Callable[[], None]) -> None:
        self._clock, self._synchronize = clock, synchronize

    def mark(self) -> Any:
        self._synchronize()
        return self._clock.mark()

    def between(self, begin: Any, end: Any) -> float:
        return self._clock.between(begin, end)


def _rate(amount: float, seconds: float) -> float:
    return amount / seconds if seconds > 0 else 0.0


def _positive(normalizer: float) -> None:
    if normalizer <= 0:
        raise UsageError(f"normalizer={normalizer}: must be above 0")


def trim_mean(data: Sequence[float], trim_percent: float) -> float:
    """The mean without the lowest and highest `trim_percent` (0 to below 0.5) of the values."""
    if not 0 <= trim_percent < 0.5:
        raise UsageError(f"trim_percent={trim_percent}: say 0 or more, below 0.5")
    cut = int(len(data) * trim_percent)
    kept = sorted(data)[cut : len(data) - cut]
    return sum(kept) / len(kept) if kept else 0.0
