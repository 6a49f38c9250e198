"""Several backward passes before one step add up on several ranks, however sums are scaled."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ds_core.engine import Engine
from ds_core.groups import make_groups
from ds_core.optimizers import parameter_groups
from ds_core.precision import PrecisionSettings
from ds_core.replicated import Replicated, ReplicatedSettings
from support.ranks import run_ranks

LOSSES = 3


def make_model(sparse):
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(6, 3, sparse=sparse), nn.Linear(3, 1))


def loss_of(model, rank, number):
    return model(torch.tensor([rank, number + 1, 5])).square().mean()


def weight_of(rank, number):
    return 1.0 + 2 * rank + number


def take_a_step(predivide, weighted, sparse):
    model, groups = make_model(sparse), make_groups()
    strategy = Replicated(
        model,
        parameter_groups(model.parameters()),
        lambda params: torch.optim.SGD(params, lr=1.0),
        groups=groups,
        precision=PrecisionSettings(),
        settings=ReplicatedSettings(predivide=predivide),
    )
    engine, rank = Engine(model, strategy, groups=groups), dist.get_rank()
    for number in range(LOSSES):
        weight = weight_of(rank, number) if weighted else None
        engine.backward(loss_of(engine, rank, number), weight=weight)
    engine.step()
    return [param.detach().clone() for param in model.parameters()]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("predivide", [None, 4.0])
def test_three_losses_before_a_step_equal_plain_torch(predivide, weighted, sparse):
    model = make_model(sparse=False)
    places = [(rank, number) for rank in range(2) for number in range(LOSSES)]
    total = sum(weight_of(*place) for place in places) if weighted else 2.0
    for place in places:
        (loss_of(model, *place) * (weight_of(*place) if weighted else 1.0) / total).backward()
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    for found in run_ranks(take_a_step, 2, predivide, weighted, sparse):
        for value, expected in zip(found, model.parameters(), strict=True):
            torch.testing.assert_close(value, expected.detach(), rtol=1e-5, atol=1e-6)
