"""Every update strategy trains like plain PyTorch in one process."""

from __future__ import annotations

import pytest
import torch

from support.ranks import run_ranks
from support.strategies import Setup, build_engine
from support.training import Run, assert_same_run, engine_run, plain_run

STEPS = 4
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 4e-3}
STRATEGIES = ["replicated"]


def train_grid(strategy: str, setups: list[Setup]) -> list[Run]:
    """One run a setup, on this rank."""
    runs = []
    for setup in setups:
        engine = build_engine(strategy, setup)
        runs.append(
            engine_run(
                engine, steps=STEPS, accumulation=setup.accumulation, masters=engine.strategy.held
            )
        )
        engine.destroy()
    return runs


def plain(setup: Setup, world_size: int) -> Run:
    return plain_run(
        steps=STEPS,
        accumulation=setup.accumulation,
        world_size=world_size,
        max_norm=setup.max_norm,
        dtype=setup.dtype,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("max_norm", [0.0, 0.3], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("accumulation", [1, 2, 8])
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_training_equals_plain_torch(strategy, world_size, accumulation, max_norm, dtype):
    setups = [
        Setup(accumulation, max_norm, dtype, bucket_elements) for bucket_elements in (1, 10**9)
    ]
    expected = plain(setups[0], world_size)
    for runs in run_ranks(train_grid, world_size, strategy, setups):
        for run in runs:
            assert_same_run(run, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_bucket_size_and_overlap_change_no_bit(strategy):
    setups = [
        Setup(2, 0.3, torch.float32, size, overlap)
        for size in (1, 10, 300, 10**9)
        for overlap in (True, False)
    ]
    for runs in run_ranks(train_grid, 2, strategy, setups):
        for run in runs[1:]:
            assert (run.losses, run.norms) == (runs[0].losses, runs[0].norms)
            for name, value in runs[0].weights.items():
                assert torch.equal(run.weights[name], value), name
