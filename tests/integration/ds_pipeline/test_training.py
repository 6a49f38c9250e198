"""A pipeline trains like one process: losses, norms and every weight."""

from __future__ import annotations

import pytest
import torch

from support.pipelines import Case, assert_same, batches, build, pipeline_runs, plain_run
from support.ranks import run_ranks

SCHEDULES = ["gpipe", "1f1b", "zb-h1", "interleaved"]
SIZES = [(1, 0), (2, 1), (8, 2)]
"""(micro-batches, layers whose activations are recomputed together)."""


def cases(model, stages, replicas):
    layouts = SCHEDULES if stages > 1 else ["1f1b", "zb-h1"]
    return [
        Case(model, stages, schedule, micro, interval)
        for schedule in layouts
        for micro, interval in (SIZES if replicas == 1 else SIZES[1:2])
    ]


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("model", ["gpt", "conv"])
def test_every_schedule_trains_like_one_process(model, stages, replicas):
    grid = cases(model, stages, replicas)
    plain = {micro: plain_run(Case(model, micro_batches=micro), replicas) for micro, _ in SIZES}
    for runs in run_ranks(pipeline_runs, stages * replicas, grid, timeout=120):
        for case, run in zip(grid, runs, strict=True):
            assert_same(run, plain[case.micro_batches], tolerance=1e-6)


def test_three_stages_train_like_one_process():
    case = Case("gpt", 3, "1f1b", 5)
    for (run,) in run_ranks(pipeline_runs, 3, [case]):
        assert_same(run, plain_run(case), tolerance=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_does_not_depend_on_the_stages(dtype):
    one, two = (Case("gpt", stages, "1f1b", 4, dtype=dtype) for stages in (1, 2))
    (alone,) = run_ranks(pipeline_runs, 1, [one])[0]
    for (run,) in run_ranks(pipeline_runs, 2, [two]):
        assert_same(run, alone, tolerance=2e-3)


def test_low_precision_follows_fp32():
    case = Case("gpt", 2, "1f1b", 4, dtype=torch.bfloat16)
    plain = plain_run(case)
    for (run,) in run_ranks(pipeline_runs, 2, [case]):
        torch.testing.assert_close(run.losses, plain.losses, rtol=2e-2, atol=2e-2)


def labels_of_a_step(case):
    engine = build(case)
    seen = []
    engine.groups.taps.add(
        lambda event: seen.append(event.label.split(" in the first")[0].rstrip("0123456789 "))
    )
    engine.train_batch(batches(case, 0, engine.grid.data_parallel_id))
    return seen


def test_replicas_reduce_gradients_before_they_wait_for_other_stages():
    for seen in run_ranks(labels_of_a_step, 4, Case("conv", 2, "1f1b", 2)):
        bucket = next(label for label in seen if label.startswith("gradients of "))
        assert seen == ["batch weights", bucket, "gradient norm", "loss"]
