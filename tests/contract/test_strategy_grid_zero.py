"""The sharded strategies train like plain PyTorch in one process."""

from __future__ import annotations

import pytest
import torch

from support.ranks import run_ranks
from support.strategies import Setup, build_engine
from support.strategies_zero import SECTIONS
from support.training import Run, assert_same_run, engine_run, plain_run

STEPS = 4
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 4e-3}


def train_grid(strategies: list[str], setups: list[Setup]) -> dict[tuple[str, int], Run]:
    """One run a strategy and setup, on this rank."""
    runs = {}
    for strategy in strategies:
        for number, setup in enumerate(setups):
            engine = build_engine(strategy, setup)
            runs[strategy, number] = engine_run(
                engine, steps=STEPS, accumulation=setup.accumulation, masters=engine.strategy.held
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


SETUPS = [
    Setup(1, 0.3, torch.float32, 100),
    Setup(3, 0.0, torch.float32, 10**9),
    Setup(2, 0.3, torch.bfloat16, 100),
    Setup(2, 0.0, torch.float16, 10**9),
]


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("strategy", list(SECTIONS))
def test_training_equals_plain_torch(strategy, world_size):
    for runs in run_ranks(train_grid, world_size, [strategy], SETUPS):
        for (_, number), run in runs.items():
            setup = SETUPS[number]
            expected = plain(setup, world_size)
            tolerance = TOLERANCE[setup.dtype]
            assert_same_run(run, expected, rtol=tolerance, atol=tolerance)


def test_four_ranks_equal_plain_torch():
    setups = [Setup(2, 0.3, torch.float32, 300)]
    expected = plain_run(steps=STEPS, accumulation=2, world_size=4, max_norm=0.3)
    for runs in run_ranks(train_grid, 4, list(SECTIONS), setups, timeout=120):
        for run in runs.values():
            assert_same_run(run, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("strategy", ["stage1", "stage2", "stage3"])
def test_bucket_size_and_overlap_change_no_bit(strategy):
    setups = [
        Setup(2, 0.3, torch.float32, size, overlap)
        for size in (1, 10, 300, 10**9)
        for overlap in (True, False)
    ]
    for runs in run_ranks(train_grid, 2, [strategy], setups):
        first = runs[strategy, 0]
        for run in runs.values():
            assert (run.losses, run.norms) == (first.losses, first.norms)
            for name, value in first.weights.items():
                assert torch.equal(run.weights[name], value), name
