"""Stopwatches and the throughput meter, on a clock that the test turns."""

from __future__ import annotations

import logging

import pytest

from ds_profiler import NoopTimer, SynchronizedWallClockTimer, ThroughputTimer, UsageError
from ds_profiler.clock import HostClock
from ds_profiler.timers import trim_mean


class FakeTime:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now = 100.0
        self.syncs = 0

    def __call__(self) -> float:
        return self.now

    def sync(self) -> None:
        self.syncs += 1


def timers(time: FakeTime) -> SynchronizedWallClockTimer:
    return SynchronizedWallClockTimer(HostClock(now=time))


def test_spans_add_up_in_milliseconds_until_read() -> None:
    time = FakeTime()
    watch = timers(time)("fwd")
    for seconds in (1.0, 2.0):
        watch.start()
        time.now += seconds
        watch.stop()
        time.now += 5
    assert (watch.elapsed(reset=False), watch.elapsed(), watch.elapsed()) == (3000, 3000, 0)


def test_a_running_timer_can_be_read_and_goes_on() -> None:
    time = FakeTime()
    watch = timers(time)("fwd")
    watch.start()
    time.now += 1
    assert watch.elapsed() == 1000
    time.now += 2
    watch.stop()
    assert watch.elapsed() == 2000


def test_recorded_spans_have_a_mean() -> None:
    time = FakeTime()
    group = timers(time)
    for seconds in (1.0, 3.0):
        group("fwd").start()
        time.now += seconds
        group("fwd").stop(record=True)
    assert group.get_mean(["fwd", "never"], normalizer=2.0) == {"fwd": 1000.0}


@pytest.mark.parametrize("wrong", ["start", "stop"])
def test_a_timer_used_out_of_order_says_which(wrong: str) -> None:
    watch = timers(FakeTime())("fwd")
    if wrong == "start":
        watch.start()
    with pytest.raises(UsageError, match="'fwd'"):
        getattr(watch, wrong)()


def test_the_log_line_names_each_timer(caplog: pytest.LogCaptureFixture) -> None:
    time = FakeTime()
    group = timers(time)
    group("fwd").start()
    time.now += 0.5
    group("fwd").stop()
    with caplog.at_level(logging.INFO):
        group.log(["fwd"], normalizer=2, memory_breakdown=True)
    assert "fwd: 250.00" in caplog.text
    assert "device memory" in caplog.text


@pytest.mark.parametrize("every", [1, 5, 7, None])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_throughput_is_right_for_any_interval_and_accumulation(
    every: int | None, accumulation: int
) -> None:
    time, lines = FakeTime(), []
    timer = ThroughputTimer(16, steps_per_output=every, clock=time, logging_fn=lines.append)
    for step in range(20):
        for micro in range(accumulation):
            timer.start()
            time.now += (100 if step < 2 else 1) / accumulation  # the first two are warm-up
            timer.stop(global_step=micro == accumulation - 1)
            time.now += 3  # outside of the step
    assert timer.avg_samples_per_sec() == pytest.approx(16)
    assert all("16.00" in line for line in lines)
    assert len(lines) == {1: 18, 5: 4, 7: 2, None: 0}[every]


def test_tokens_are_told_if_known() -> None:
    time = FakeTime()
    timer = ThroughputTimer(4, start_step=0, tokens_per_batch=400, clock=time)
    timer.start()
    time.now += 2
    timer.stop(global_step=True)
    assert (timer.avg_samples_per_sec(), timer.avg_tokens_per_sec()) == (2, 200)


def test_the_device_is_waited_for_only_when_asked() -> None:
    time = FakeTime()
    for synchronize in (None, time.sync):
        timer = ThroughputTimer(1, start_step=0, clock=time, synchronize=synchronize)
        timer.start()
        timer.stop(global_step=True)
    assert time.syncs == 2


def test_no_samples_are_refused() -> None:
    with pytest.raises(UsageError, match="batch_size=0"):
        ThroughputTimer(0)


def test_the_timer_that_does_nothing_has_all_methods() -> None:
    group = NoopTimer()
    group("a").start()
    group("a").stop()
    group.log(["a"])
    assert (group("a").elapsed(), group.get_mean(["a"]), group.has_timer("a")) == (0.0, {}, True)


def test_trimmed_mean_drops_both_ends() -> None:
    assert trim_mean([100.0, 1.0, 2.0, 3.0, -50.0], 0.2) == 2.0
    with pytest.raises(UsageError, match=r"0\.7"):
        trim_mean([1.0], 0.7)
