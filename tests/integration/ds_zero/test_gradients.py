"""Gradients that are there only sometimes, somewhere, or travel in another way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ds_zero.sections import ZeroSection
from support.ranks import run_ranks
from support.strategies import Setup, build_engine
from support.strategies_zero import SECTIONS
from support.training import Run, assert_same_run, engine_run, make_batch, plain_run
from support.zero_models import Reference, engine_of, train

STRATEGIES = ["stage1", "stage2", "stage3-frugal", "stage2-nvme", "stage3-nvme"]


class Trunk(nn.Module):
    """A trunk, a branch that is taken on request, and a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.branch = nn.Linear(2, 2), nn.Linear(2, 2)
        self.gain = nn.Parameter(torch.tensor(3.0))

    def forward(self, x: Tensor, branch: bool) -> Tensor:
        hidden = self.trunk(x)
        return self.gain * (hidden + self.branch(hidden) if branch else hidden).sum()


def groups_of(model: Trunk) -> list[dict[str, Any]]:
    """The scalar has a group of its own."""
    matrices = [*model.trunk.parameters(), *model.branch.parameters()]
    return [{"params": matrices}, {"params": [model.gain]}]


def branch_once(strategy: str, owners: list[int]) -> dict[str, Tensor]:
    """The branch is taken in the second of three micro-batches, on some ranks only."""
    torch.manual_seed(0)
    model = Trunk()
    engine = engine_of(SECTIONS[strategy], model, groups=groups_of(model), accumulation=3)
    for _ in range(2):
        for micro in range(3):
            engine.backward(engine(torch.ones(1, 2), micro == 1 and dist.get_rank() in owners))
            engine.step()
    return {name: engine.strategy.held(p).clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize(("ranks", "owners"), [(2, [0, 1]), (2, [0]), (4, [1])])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_branch_taken_once_on_some_ranks_gives_the_plain_clipped_mean(strategy, ranks, owners):
    torch.manual_seed(0)
    model = Trunk()
    optimizer = torch.optim.AdamW(groups_of(model), lr=0.01)
    for _ in range(2):
        for micro in range(3):
            for rank in range(ranks):
                taken = micro == 1 and rank in owners
                (model(torch.ones(1, 2), taken) / (3 * ranks)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    for found in run_ranks(branch_once, ranks, strategy, owners):
        for name, value in model.named_parameters():
            torch.testing.assert_close(found[name], value.detach(), rtol=1e-5, atol=1e-6)


def run_all(setups: list[Setup]) -> dict[tuple[str, int], Run]:
    runs = {}
    for strategy in STRATEGIES:
        for number, setup in enumerate(setups):
            engine = build_engine(strategy, setup)
            runs[strategy, number] = engine_run(
                engine, steps=20, accumulation=setup.accumulation, masters=engine.strategy.held
            )
            engine.destroy()
    return runs


@pytest.mark.slow
@pytest.mark.parametrize("max_norm", [0.0, 0.3])
def test_twenty_steps_with_ties_and_accumulation_are_the_same_at_every_stage(max_norm):
    setups = [Setup(accumulation, max_norm) for accumulation in ((1, 8) if max_norm else (2,))]
    plain = [
        plain_run(steps=20, accumulation=s.accumulation, world_size=2, max_norm=max_norm)
        for s in setups
    ]
    for runs in run_ranks(run_all, 2, setups, timeout=180):
        for (_, number), run in runs.items():
            assert run.losses == pytest.approx(runs["stage1", number].losses, rel=1e-6)
            assert_same_run(run, plain[number], rtol=1e-5, atol=1e-5)


SETTINGS: dict[int, list[dict[str, Any]]] = {
    2: [
        {"contiguous_gradients": False},
        {"reduce_scatter": False},
        {"allgather_partitions": False},
        {"allgather_bucket_size": 10},
        {"round_robin_gradients": True, "reduce_bucket_size": 100},
        {"overlap_comm": False},
        {"grad_hooks": False},
        {"sub_group_size": 7},
    ],
    3: [
        {"contiguous_gradients": False, "overlap_comm": False},
        {"reduce_scatter": False},
        {"stage3_prefetch_bucket_size": 0},
        {"stage3_max_live_parameters": 0},
        {"stage3_max_reuse_distance": 0},
        {"stage3_param_persistence_threshold": 0},
        {"stage3_model_persistence_threshold": 10},
        {"stage3_module_granularity_threshold": 10**9},
        {"stage3_allgather_sequential": True},
        {"memory_efficient_linear": False},
        {"sub_group_size": 7},
    ],
}


def losses_with(stage: int) -> list[list[float]]:
    """The run without settings, and one with each."""
    found = []
    for settings in [{}, *SETTINGS[stage]]:
        torch.manual_seed(0)
        engine = engine_of(ZeroSection(stage=stage, **settings), Reference())
        found.append(train(engine, range(3)))
        engine.destroy()
    return found


@pytest.mark.parametrize("stage", [2, 3])
def test_no_setting_of_communication_changes_a_bit(stage):
    for first, *others in run_ranks(losses_with, 2, stage):
        for settings, losses in zip(SETTINGS[stage], others, strict=True):
            assert losses == first, settings


def norms(strategy: str, quiet: bool) -> list[float]:
    engine = build_engine(strategy, Setup(accumulation=4))
    found = []
    for step in range(2):
        for micro in range(4):
            batch = make_batch(step, micro, dist.get_rank())
            if quiet and micro < 3:
                with engine.no_sync():
                    engine.backward(engine(*batch))
            else:
                engine.backward(engine(*batch))
            report = engine.step()
        found.append(report.grad_norm)
    return found


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_sync_is_accepted_and_changes_nothing(strategy):
    assert run_ranks(norms, 2, strategy, True) == run_ranks(norms, 2, strategy, False)
