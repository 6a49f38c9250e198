"""A stage that fails, dies or disagrees ends the run with its name."""

from __future__ import annotations

import gc
import os
import time
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ds_core.errors import CollectiveTimeout, RankMismatchError
from ds_pipeline import LayerSpec, PipelineError, PipelineModule, ScheduleError, links
from support.pipelines import (
    Case,
    assert_same,
    batches,
    build,
    engine_over,
    pipeline_run,
    plain_run,
)
from support.ranks import run_ranks

CASE = Case("gpt", 3, "1f1b", 3)


def said(call, *arguments):
    """What an error says, of a call that is to fail."""
    try:
        call(*arguments)
    except PipelineError as error:
        return str(error)
    return "no error"


def fail_on_first_stage():
    """Stage 0 raises in its second micro-batch; every stage says what it saw."""
    engine = build(CASE)
    data = list(batches(CASE, 0, 0))
    iterator = iter(data[:1]) if engine.is_first_stage() else iter(data)
    try:
        engine.train_batch(iterator)
    except PipelineError as error:
        return str(error)
    return "no error"


def test_all_stages_name_the_one_whose_data_ended():
    first, *others = run_ranks(fail_on_first_stage, 3, timeout=10)
    assert "the data of stage 0 (rank 0) ended after 1 of 3" in first
    for message in others:
        assert "The first to fail was stage 0 (rank 0): PipelineError: the data of" in message


def vanish_on_last_stage():
    """The last stage's connections close without a word, as those of a killed process do."""
    engine = build(CASE)
    if engine.is_last_stage():
        dist.destroy_process_group()
        return "gone"
    try:
        engine.train_batch(batches(CASE, 0, 0))
    except PipelineError as error:
        return str(error)
    return "no error"


def test_a_stage_that_dies_is_named_by_all():
    first, middle, _ = run_ranks(vanish_on_last_stage, 3, timeout=30)
    assert "stage 1 (rank 1) gave up" in middle
    assert "stage 2 (rank 2)" in middle
    assert "it was killed, or does other things" in middle
    assert "The first to fail was stage 1 (rank 1)" in first
    assert "stage 2 (rank 2)" in first


def disagree():
    engine = build(CASE)
    case = CASE if engine.stage_id else Case("gpt", 3, "1f1b", 4)
    with pytest.raises(RankMismatchError, match="ranks disagree on the pipeline: 'micro-batches'"):
        engine_over(engine.module, case)


def test_stages_with_other_numbers_of_micro_batches_are_told_at_the_start():
    run_ranks(disagree, 3)


def without_parameters():
    layers = [LayerSpec(nn.Linear, 4, 4), torch.relu, LayerSpec(nn.Linear, 4, 4)]
    module = PipelineModule(
        layers, 3, loss_fn=nn.functional.mse_loss, partition_method=[0, 1, 2, 3]
    )
    engine = engine_over(module, Case(stages=3, micro_batches=2))
    data = [(torch.randn(2, 4), torch.zeros(2, 4)) for _ in range(4)]
    return [engine.train_batch(iter(data[2 * step :])).item() for step in range(2)]


def test_a_stage_without_parameters_takes_part():
    losses = run_ranks(without_parameters, 3)
    assert losses[0] == losses[1] == losses[2]


def refusals():
    engine = build(Case("gpt", 1))
    for call in (engine.forward, engine.backward, engine.step):
        with pytest.raises(PipelineError, match="call train_batch"):
            call()
    with pytest.raises(PipelineError, match="needs data"):
        engine.train_batch()
    with pytest.raises(PipelineError, match=r"where \(inputs, labels\) is expected"):
        engine.train_batch(iter([1, 2]))
    with torch.no_grad(), pytest.raises(PipelineError, match="use eval_batch"):
        engine.train_batch(iter([]))


def test_calls_that_do_not_fit_are_refused():
    refusals()


def sender_is_gone():
    engine = build(CASE)
    if engine.is_last_stage():
        engine._links._in[1]._inbox._process = 2**22 + 1  # no process has this number
    return said(engine.train_batch, batches(CASE, 0, 0))


def test_a_sender_that_left_nothing_to_find_is_named():
    *_, last = run_ranks(sender_is_gone, 3, timeout=10)
    assert "stage 2 (rank 2) gave up receiving activations of micro-batch 0 from stage 1" in last
    assert "No such file" in last


def go_on_after_a_failure():
    """The last stage lacks labels of the second micro-batch; then there is data for all."""
    case = Case("gpt", 2, "1f1b", 3)
    engine = build(case)
    data = list(batches(case, 0, 0))
    engine.train_batch(iter(data))
    mine = iter(data[:1] if engine.is_last_stage() else data)
    first = said(partial(engine.eval_batch, mine, compute_loss=False))
    said(engine.train_batch, iter(data))
    return first, said(engine.train_batch, iter(data))


def test_stages_that_are_not_in_step_after_a_failure_do_not_train_on():
    _, (failed, refused) = run_ranks(go_on_after_a_failure, 2, timeout=10)
    assert "the data of stage 1 (rank 1) ended after 1 of 3" in failed
    assert "not in step since a pass failed" in refused
    assert "PipelineError: the data of stage 1" in refused
    assert refused.count("not in step") == 1


def evaluate_unlike(way, rows):
    """The first stage evaluates three micro-batches, the last one two; then both train."""
    if way == "group":
        links.sharing_processes = lambda comm, *, willing: [None] * comm.world_size
    case = Case("gpt", 2, "1f1b", 2)
    engine = build(case)
    data = list(batches(Case("gpt", 2, "1f1b", 3), 0, 0))
    engine.train_batch(iter(data))
    resized = [(inputs[:rows], labels[:rows]) for inputs, labels in data]
    count = 3 if engine.is_first_stage() else 2
    call = partial(engine.eval_batch, compute_loss=False, num_micro_batches=count)
    return said(call, iter(resized)), said(engine.train_batch, iter(data))


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("way", ["shared memory", "group"])
def test_a_pass_that_neighbours_make_differently_is_refused_before_its_first_value(way, rows):
    first, last = run_ranks(evaluate_unlike, 2, way, rows, timeout=20)
    assert "stage 0 (rank 0) sent something else where activations of micro-batch 0" in last[0]
    assert "The first to fail was stage 1 (rank 1)" in first[1]


def start_again():
    """A pass fails on the last stage; the same processes then train in a new engine."""
    case = Case("gpt", 2, "1f1b", 3)
    engine = build(case)
    data = list(batches(case, 0, 0))
    failed = said(engine.train_batch, iter(data[:1] if engine.is_last_stage() else data))
    engine.destroy()
    return failed, pipeline_run(case)


def test_the_same_processes_train_on_in_a_new_engine_after_a_failure():
    plain = plain_run(Case("gpt", 1, "1f1b", 3))
    for failed, run in run_ranks(start_again, 2, timeout=20):
        assert "the data of stage 1 (rank 1) ended after 1 of 3" in failed
        assert_same(run, plain, tolerance=1e-5)


def fail_in_one_replica():
    """The data of the first replica end early on its first stage."""
    case = Case("gpt", 2, "1f1b", 2)
    engine = build(case)
    data = list(batches(case, 0, 0))
    try:
        engine.train_batch(iter(data[:1] if dist.get_rank() == 0 else data))
    except (PipelineError, CollectiveTimeout) as error:
        return type(error).__name__, str(error)
    return "no error", ""


def test_a_stage_of_another_replica_that_failed_is_named_too():
    first, *others = run_ranks(fail_in_one_replica, 4, timeout=20, group_timeout=4)
    assert first[1].startswith("the data of stage 0 (rank 0) ended")
    assert [kind for kind, _ in others] == [
        "CollectiveTimeout",
        "PipelineError",
        "CollectiveTimeout",
    ]
    for _, message in others:
        assert "The first to fail was stage 0 (rank 0): PipelineError: the data of" in message


def fail_twice():
    """An evaluation that no stage begins; then the first stage gets a list."""
    engine = build(CASE)
    data = list(batches(CASE, 0, 0))
    for number in (-1, 0, 1.5):
        with pytest.raises(ScheduleError, match=f"{number} micro-batches: there must be"):
            engine.eval_batch(iter(data), num_micro_batches=number)
    loss = engine.train_batch(iter(data)).item()
    return loss, said(engine.train_batch, data if engine.is_first_stage() else iter(data))


def test_a_failure_that_the_stages_got_over_is_not_taken_for_the_next_one():
    (loss, first), *others = run_ranks(fail_twice, 3, timeout=20)
    assert "stage 0 (rank 0) got a list where an iterator of micro-batches is expected" in first
    for other, message in others:
        assert other == loss
        assert (
            "The first to fail was stage 0 (rank 0): PipelineError: stage 0 (rank 0) got" in message
        )


def alone_with_data_that_end():
    """Data of one replica end, which its program gets over; then those of the other."""
    case = Case("gpt", 1, "1f1b", 2)
    engine = build(case)
    data = list(batches(case, 0, 0))
    me = dist.get_rank()
    first = said(engine.eval_batch, iter(data if me else data[:1]), False, False)
    dist.barrier()
    engine.eval_batch(iter(data), compute_loss=False)
    dist.barrier()
    second = said(engine.eval_batch, iter(data[:1] if me else data), False, False)
    return first, second, engine._faults._first()


def test_what_a_replica_got_over_is_forgotten():
    (first, none, last), (nothing, second, _) = run_ranks(alone_with_data_that_end, 2, timeout=20)
    assert none == nothing == "no error"
    assert "stage 0 (rank 0) ended" in first
    assert "stage 0 (rank 1) ended" in second
    assert "stage 0 (rank 1): PipelineError" in last


def drop_an_engine():
    engine = build(CASE)
    engine.train_batch(batches(CASE, 0, 0))
    ends = [out._shared[1] for out in engine._links._out.values()]
    del engine
    gc.collect()
    return [bell._write for bell in ends]


def test_an_engine_that_nobody_destroyed_closes_its_lines_when_it_goes():
    assert run_ranks(drop_an_engine, 3, timeout=20) == [[-1], [-1, -1], [-1]]


def held_by_this_process():
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def build_and_destroy():
    before = held_by_this_process()
    for _ in range(2):
        engine = build(CASE)
        engine.train_batch(batches(CASE, 0, 0))
        engine.destroy()
        del engine
        gc.collect()
    dist.barrier()
    until = time.monotonic() + 5  # the kernel takes a thread away a little after its end
    while held_by_this_process() != before and time.monotonic() < until:
        time.sleep(0.01)
    return before, held_by_this_process()


def test_a_destroyed_engine_leaves_no_threads_and_no_open_files():
    for before, after in run_ranks(build_and_destroy, 3, timeout=20):
        assert after == before
