"""Edits inside GatheredParameters reach all ranks at every stage, however tensors are given."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import deepspeed
from ds_core.errors import ConfigError, StateError
from support.ranks import run_ranks

STAGES = [0, 1, 2, 3]


class Odd(nn.Module):
    """A trained matrix that is stored transposed, and a frozen one with gaps."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.turned = nn.Parameter(torch.rand(3, 4).t())
        self.gaps = nn.Parameter(torch.rand(4, 8)[:, ::2], requires_grad=False)

    def forward(self, x):
        return (self.layer(x.to(self.gaps.dtype)) @ self.gaps @ self.turned).square().mean()


def make_engine(stage):
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    return deepspeed.initialize(model=Odd(), config=config)[0]


def values(engine):
    params = list(engine.module.parameters())
    with engine.gather(params):
        return [p.detach().float().clone() for p in params]


def edit_in_all_ways(stage):
    engine, rank = make_engine(stage), dist.get_rank()
    params = list(engine.module.parameters())
    given = set(params)  # in another order on each rank
    with deepspeed.zero.GatheredParameters(given, modifier_rank=1), torch.no_grad():
        for param in params if rank else []:
            param.fill_(0.5)
    filled = values(engine)
    with deepspeed.zero.GatheredParameters(params, modifier_rank=0):
        for param in [] if rank else params:
            param.data = torch.full_like(param, 0.25)
    replaced = values(engine)
    masters = [engine.strategy.held(param).detach().float().clone() for param in params]
    engine.backward(engine(torch.zeros(1, 4)))
    engine.step()
    return filled, replaced, masters, values(engine)


@pytest.mark.parametrize("stage", STAGES)
def test_values_written_in_place_or_replaced_reach_all_ranks_and_masters(stage):
    first, second = run_ranks(edit_in_all_ways, 2, stage)
    for filled, replaced, masters, stepped in (first, second):
        assert all((value == 0.5).all() for value in filled)
        assert all((value == 0.25).all() for value in replaced + masters)
        assert all(((value - 0.25).abs() < 0.05).all() for value in stepped)
    for one, other in zip(first[3], second[3], strict=True):
        assert torch.equal(one, other)


def reshape_on_rank_1(weight):
    with deepspeed.zero.GatheredParameters([weight], modifier_rank=1):
        if dist.get_rank() == 1:
            weight.data = torch.ones(2, 2, dtype=torch.bfloat16)


def edit_wrongly(stage):
    engine = make_engine(stage)
    weight = engine.module.layer.weight
    with pytest.raises(ConfigError, match=r"modifier_rank 2 must be .* from 0 to 1"):
        deepspeed.zero.GatheredParameters([weight], modifier_rank=2).__enter__()
    with pytest.raises(StateError, match=r"'layer.weight' has shape \(2, 2\).*on rank 1, \(4, 4\)"):
        reshape_on_rank_1(weight)
    return [value.shape for value in values(engine)]


@pytest.mark.parametrize("stage", STAGES)
def test_a_wrong_rank_or_shape_is_told_on_all_ranks_and_changes_nothing(stage):
    for shapes in run_ranks(edit_wrongly, 2, stage):
        assert shapes == [param.shape for param in Odd().parameters()]


def save_and_load(stage, folder):
    engine = make_engine(stage)
    before = values(engine)
    engine.save_checkpoint(folder)
    params = list(engine.module.parameters())
    with deepspeed.zero.GatheredParameters(params, modifier_rank=0), torch.no_grad():
        for param in params:
            param.zero_()
    engine.load_checkpoint(folder)
    return before, values(engine)


@pytest.mark.parametrize("stage", STAGES)
def test_frozen_weights_with_gaps_are_loaded(stage, tmp_path):
    for before, after in run_ranks(save_and_load, 2, stage, str(tmp_path)):
        for one, other in zip(before, after, strict=True):
            assert torch.equal(one, other)
