"""Schedules: never hang, do everything once, and idle as much as their papers say."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ds_pipeline.errors import ScheduleError
from ds_pipeline.instructions import (
    BackwardInput,
    BackwardWeight,
    BufferOpInstruction,
    ForwardPass,
    LoadMicroBatch,
    RecvActivation,
    SendActivation,
    SendGrad,
)
from ds_pipeline.schedules import SCHEDULES, plan, plan_inference
from ds_pipeline.simulate import Costs, simulate

sizes = st.tuples(st.integers(1, 64), st.integers(1, 512)).filter(lambda s: s[0] * s[1] < 3000)
few = settings(max_examples=8, deadline=None)
largest = example((64, 512))


def plans(name, stages, micro_batches, chunks=1):
    return [plan(name, s, stages, micro_batches, chunks=chunks) for s in range(stages)]


def assert_all_done(timeline, number):
    done = {(s.stage, s.kind, s.micro_batch, s.chunk) for s in timeline.spans}
    assert len(timeline.spans) == len(done) == number


def bubble(name, stages, micro_batches, chunks=1):
    return simulate(plans(name, stages, micro_batches, chunks), chunks=chunks).bubble


@few
@given(st.integers(2, 64), st.integers(1, 40), st.integers(1, 4))
def test_interleaving_hangs_at_no_size(stages, micro_batches, chunks):
    timeline = simulate(plans("interleaved", stages, micro_batches, chunks), chunks=chunks)
    assert len(timeline.spans) == 2 * stages * micro_batches * chunks


@few
@given(sizes)
def test_inference_hangs_at_no_size(size):
    stages, micro_batches = size
    timeline = simulate([plan_inference(s, stages, micro_batches) for s in range(stages)])
    assert timeline.length == stages + micro_batches - 1


@few
@largest
@given(sizes)
def test_gpipe_idles_as_published(size):
    stages, micro_batches = size
    timeline = simulate(plans("gpipe", stages, micro_batches))
    assert timeline.bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1))
    assert timeline.peak == [micro_batches] * stages
    assert_all_done(timeline, stages * micro_batches * 2)


@few
@largest
@given(sizes)
def test_1f1b_idles_as_published_and_holds_no_more_than_the_stages_behind(size):
    stages, micro_batches = size
    timeline = simulate(plans("1f1b", stages, micro_batches))
    assert timeline.bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1))
    assert timeline.peak == [min(stages - s, micro_batches) for s in range(stages)]
    assert_all_done(timeline, stages * micro_batches * 2)


@few
@given(st.integers(2, 32), st.integers(1, 6), st.integers(1, 4))
def test_interleaving_divides_the_idle_time_by_the_chunks(stages, rounds, chunks):
    micro_batches = stages * rounds
    expected = (stages - 1) / (micro_batches * chunks + stages - 1)
    assert bubble("interleaved", stages, micro_batches, chunks) == pytest.approx(expected)


@few
@given(st.integers(1, 64), st.integers(0, 20))
def test_zb_h1_idles_a_third_of_1f1b(stages, more):
    micro_batches = stages + more
    expected = (stages - 1) / (3 * micro_batches + stages - 1)
    assert bubble("zb-h1", stages, micro_batches) == pytest.approx(expected)


@few
@largest
@given(sizes)
def test_zb_h1_holds_no_more_than_the_first_stage_of_1f1b(size):
    stages, micro_batches = size
    timeline = simulate(plans("zb-h1", stages, micro_batches))
    assert max(timeline.peak) <= min(stages, micro_batches)
    halves = sum(1 + (span.kind == "BackwardPass") for span in timeline.spans)
    assert halves == stages * micro_batches * 3


@few
@largest
@given(sizes)
def test_zb_h1_splits_only_what_both_ends_need(size):
    stages, micro_batches = size
    for stage in {0, 1 % stages, stages - 1}:
        kinds = [type(step) for step in plan("zb-h1", stage, stages, micro_batches)]
        expected = min(stages, micro_batches) if stage else 0
        assert kinds.count(BackwardInput) == kinds.count(BackwardWeight) == expected


def test_zb_h1_takes_less_time_than_1f1b_with_real_costs():
    costs = Costs(forward=1.0, input=1.1, weight=0.9, travel=0.05)
    times = {n: simulate(plans(n, 4, 8), costs).length for n in ("gpipe", "1f1b", "zb-h1")}
    assert times["zb-h1"] < min(times["1f1b"], times["gpipe"])


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_micro_batches_are_loaded_in_order_at_both_ends(name):
    for stage in (0, 2):
        loads = [s.buffer_id for s in plan(name, stage, 3, 5) if isinstance(s, LoadMicroBatch)]
        assert loads == [0, 1, 2, 3, 4]
    assert not any(isinstance(step, LoadMicroBatch) for step in plan(name, 1, 3, 5))


def test_a_single_stage_sends_nothing():
    names = {step.name for step in plan("1f1b", 0, 1, 3)}
    assert names == {
        "LoadMicroBatch",
        "ForwardPass",
        "BackwardPass",
        "ReduceTiedGrads",
        "ReduceGrads",
        "OptimizerStep",
    }


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([[ForwardPass(0)], [RecvActivation(0)]], "hangs: stage 1 waits in Recv"),
        ([[SendActivation(0)], []], "before it is computed"),
        ([[ForwardPass(0), SendActivation(0)], []], "is never received"),
        ([[ForwardPass(0), ForwardPass(0)]], "comes after 'forward'"),
        ([[ForwardPass(0), BackwardWeight(0)]], "comes after 'forward'"),
        ([[], [BackwardInput(0), SendGrad(0)]], "comes after 'new'"),
    ],
)
def test_the_simulator_names_what_is_wrong(steps, said):
    with pytest.raises(ScheduleError, match=said):
        simulate(steps)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("1f2b", 0, 2, 2, 1), "known: gpipe, 1f1b, interleaved, zb-h1"),
        (("1f1b", 2, 2, 2, 1), "stage 2 is not one of 2"),
        (("1f1b", 0, 2, 0, 1), "0 micro-batches"),
        (("1f1b", 0, 2, 2, 2), "use 'interleaved'"),
        (("interleaved", 0, 1, 2, 2), "need at least 2 stages"),
    ],
)
def test_impossible_plans_are_refused(arguments, said):
    name, stage, stages, micro_batches, chunks = arguments
    with pytest.raises(ScheduleError, match=said):
        plan(name, stage, stages, micro_batches, chunks=chunks)


def test_instructions_are_data_and_can_be_extended():
    class Log(BufferOpInstruction):
        pass

    step = Log(3, text="x")
    assert (step.name, step.kwargs, step.text) == ("Log", {"buffer_id": 3, "text": "x"}, "x")
    assert step == Log(3, text="x")
    assert step != Log(4, text="x")
    assert repr(ForwardPass(1, chunk=2)) == "ForwardPass(buffer_id=1, chunk=2)"
    assert ForwardPass(1, chunk=0).kwargs == {"buffer_id": 1}
    assert "1f1b" in SCHEDULES
