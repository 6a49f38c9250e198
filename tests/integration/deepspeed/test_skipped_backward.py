"""A rank that skips a backward counts as zero gradients, at every stage and for either backward."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import deepspeed
from support.ranks import run_ranks


def make_layer():
    torch.manual_seed(0)
    return nn.Linear(3, 3)


def loss_of(model, step, rank):
    return model(torch.full((1, 3), 1.0 + rank + step)).square().mean()


def skips(step, rank):
    return rank == 1 and step == 1


def train(stage, plain):
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0,
        "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": stage},
    }
    engine, *_ = deepspeed.initialize(model=make_layer(), config=config)
    rank = dist.get_rank()
    for step in range(3):
        loss = loss_of(engine, step, rank)
        if not skips(step, rank):
            _ = loss.backward() if plain else engine.backward(loss)
        engine.step()
    with engine.gather(list(engine.module.parameters())):
        return engine.module.weight.detach().clone()


@pytest.mark.parametrize("plain", [False, True], ids=["engine.backward", "loss.backward"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_ranks_stay_equal_and_equal_plain_torch(stage, plain):
    layer = make_layer()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for step in range(3):
        for rank in range(2):
            if not skips(step, rank):
                (loss_of(layer, step, rank) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    first, second = run_ranks(train, 2, stage, plain)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, layer.weight.detach(), rtol=1e-6, atol=1e-6)
