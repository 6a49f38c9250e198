"""The log of collectives sums right, knows the formulas, and never raises."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_profiler import CommsLog, bandwidth
from ds_profiler.breakdown import PhaseTimes
from ds_profiler.clock import HostClock
from ds_profiler.comms_log import timed


@dataclass
class Event:
    op: str
    nbytes: int = 1000
    world_size: int = 4
    duration: float = 0.001
    waited: float = 0.001
    label: str = ""
    group: str = "world"
    start: float = 0.0


@pytest.mark.parametrize(
    ("op", "algorithm", "bus"),
    [
        ("all_reduce", 1e6, 1.5e6),
        ("reduce_scatter_tensor", 1e6, 0.75e6),
        ("all_gather_into_tensor", 4e6, 3e6),
        ("all_to_all_single", 1e6, 0.75e6),
        ("broadcast", 1e6, 1e6),
        ("send", 1e6, 1e6),
    ],
)
def test_bandwidths_follow_the_formulas(op: str, algorithm: float, bus: float) -> None:
    speed = bandwidth(op, 1000, 4, 0.001)
    assert speed is not None
    assert speed == (pytest.approx(algorithm), pytest.approx(bus))


@pytest.mark.parametrize(
    ("op", "nbytes", "seconds"),
    [("barrier", 1000, 1.0), ("all_reduce", 0, 1.0), ("all_reduce", 1000, 0.0)],
)
def test_there_is_no_bandwidth_without_formula_data_or_time(
    op: str, nbytes: int, seconds: float
) -> None:
    assert bandwidth(op, nbytes, 4, seconds) is None


def test_calls_are_summed_by_collective_and_size() -> None:
    log = CommsLog()
    for event in (Event("all_reduce"), Event("all_reduce"), Event("all_reduce", nbytes=8)):
        log(event)
    assert [(row.name, row.nbytes, row.count) for row in log.rows()] == [
        ("all_reduce", 1000, 2),
        ("all_reduce", 8, 1),
    ]
    assert log.rows()[0].average == pytest.approx(0.001)


@given(
    op=st.text(max_size=12),
    nbytes=st.integers(0, 2**40),
    ranks=st.integers(1, 4096),
    seconds=st.floats(0, 1e3),
    label=st.text(max_size=8),
)
def test_no_event_makes_it_raise(
    op: str, nbytes: int, ranks: int, seconds: float, label: str
) -> None:
    log = CommsLog(verbose=True, by_label=True)
    log(Event(op, nbytes, ranks, seconds, seconds, label))
    assert len(log.rows()) == 1
    assert isinstance(log.log_summary(rank=1), str)


def test_unknown_collectives_are_listed_without_bandwidth() -> None:
    log = CommsLog()
    log(Event("new_fancy_gather"))
    (row,) = log.rows()
    assert (row.algorithm_bandwidth, row.bus_bandwidth) == (None, None)
    assert "new_fancy_gather" in log.log_summary()


def test_only_the_named_collectives_are_noted() -> None:
    log = CommsLog(only=["all_gather"])
    log(Event("all_reduce"))
    log(Event("all_gather"))
    assert [row.name for row in log.rows()] == ["all_gather"]


def test_labels_keep_calls_apart_if_asked() -> None:
    log = CommsLog(by_label=True)
    log(Event("all_reduce", label="gradients"))
    log(Event("all_reduce", label="norm"))
    assert {row.name for row in log.rows()} == {"all_reduce (gradients)", "all_reduce (norm)"}
    assert all(row.bus_bandwidth for row in log.rows())


def test_a_straggler_is_told_by_what_others_took() -> None:
    fast, slow = CommsLog(), CommsLog()
    for seconds in (0.1, 0.2):
        fast(Event("all_reduce", duration=seconds))
        slow(Event("all_reduce", duration=seconds + 0.5))
    ranks = [fast.durations(), slow.durations()]
    assert fast.rows(ranks)[0].straggled == pytest.approx(0)
    assert slow.rows(ranks)[0].straggled == pytest.approx(1.0)
    assert "straggled" in slow.log_summary(show_straggler=True, gather=lambda mine: ranks)


def test_each_call_is_logged_when_verbose(caplog: pytest.LogCaptureFixture) -> None:
    log = CommsLog(verbose=True)
    with caplog.at_level(logging.INFO):
        log(Event("all_reduce"))
    assert "all_reduce: 1 KB over 4 ranks in 1 ms, bus 1.5 MB/s" in caplog.text


def test_it_can_be_paused_and_emptied() -> None:
    log = CommsLog()
    log.pause()
    log(Event("all_reduce"))
    log.resume()
    assert timed(log, "barrier", 0, 2, lambda: "done") == "done"
    assert [row.name for row in log.rows()] == ["barrier"]
    log.reset()
    assert log.rows() == []


def test_backward_is_split_by_what_communication_blocked() -> None:
    now = [0.0]
    times = PhaseTimes(HostClock(now=lambda: now[0]))
    times.on_comm(Event("all_gather", waited=9.0))  # not in the backward pass
    for phase, seconds in (("forward", 1.0), ("backward", 3.0), ("step", 0.5)):
        times.begin(phase)
        if phase == "backward":
            times.on_comm(Event("all_reduce", waited=1.25))
        now[0] += seconds
        times.end(phase)
    times.close_step(64)
    assert times.ready() == [
        (
            64,
            {
                "forward": 1000.0,
                "backward": 3000.0,
                "backward_inner": 1750.0,
                "backward_allreduce": 1250.0,
                "step": 500.0,
            },
        )
    ]
