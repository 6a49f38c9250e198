"""A checkpoint of any number of stages is resumed by any other, with equal losses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ds_core.checkpoint import open_checkpoint
from ds_core.training_state import load_engine, save_engine
from support.pipelines import Case, assert_same, build, pipeline_run, plain_run
from support.ranks import run_ranks

CASE = Case("gpt", 4, "1f1b", 2)


def train_and_save(folder, case):
    engine = build(case)
    run = pipeline_run(case, steps=2, engine=engine)
    save_engine(engine, folder, "middle", client_state={"note": "hello"})
    return run.losses


def resume(folder, case):
    """Start from other weights, load, and go on."""
    engine = build(case, base_seed=99)
    with load_engine(engine, folder, "middle") as checkpoint:
        note = checkpoint.client_state()["note"]
    assert (note, engine.counters.steps) == ("hello", 2)
    return pipeline_run(case, steps=2, first=2, engine=engine)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint of four stages, and the losses until then."""
    folder = tmp_path_factory.mktemp("saved")
    return folder, run_ranks(train_and_save, 4, folder, CASE)[0]


@pytest.fixture(scope="module")
def whole_run():
    return plain_run(CASE, steps=4)


@pytest.mark.parametrize(
    ("stages", "schedule"), [(4, "1f1b"), (2, "interleaved"), (1, "gpipe")], ids=str
)
def test_a_run_on_four_stages_is_resumed_on_others(saved, whole_run, stages, schedule):
    folder, losses = saved
    case = replace(CASE, stages=stages, schedule=schedule)
    for run in run_ranks(resume, stages, folder, case):
        run.losses[:0], run.norms[:0] = losses, whole_run.norms[:2]
        assert_same(run, whole_run, tolerance=1e-6)


def test_it_is_resumed_with_more_replicas(saved):
    folder, _ = saved
    case = replace(CASE, stages=2, schedule="zb-h1")
    runs = run_ranks(resume, 4, folder, case)
    assert len({tuple(run.losses) for run in runs}) == 1
    for first, second in (runs[:2], runs[2:]):
        assert all(torch.equal(first.weights[name], second.weights[name]) for name in first.weights)


def test_a_checkpoint_holds_each_tensor_once_under_names_without_stages(saved):
    with open_checkpoint(saved[0], "middle") as checkpoint:
        names = list(checkpoint.reader.names())
        assert len(names) == len(set(names))
        assert "tied_modules.embed.weight" in names
        assert "1.mix.weight" in names
        groups = checkpoint.state["strategy"]["param_groups"]
        assert sorted(groups[0]["params"]) == sorted(names)
