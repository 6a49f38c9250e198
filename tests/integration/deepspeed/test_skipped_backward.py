"""A rank that skips a backward counts as zero gradients, at every stage and for either backward."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn

import deepspeed
from ds_core.errors import StateError
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


WINDOWS = list(itertools.product([1, 2], [False, True], [0, 1, 2]))
"""Micro-batches of a window, whether they are weighted, and the one that rank 1 leaves out."""


def train_windows(stage):
    return [train_window(stage, *window) for window in WINDOWS]


def train_window(stage, accumulation, weighted, left_out):
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 0,
        "optimizer": {"type": "SGD", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    engine, *_ = deepspeed.initialize(model=make_layer(), config=config)
    rank = dist.get_rank()
    for step in range(4):
        loss = loss_of(engine, step, rank)
        if (rank, step) != (1, left_out):
            engine.backward(loss, weight=1.0 + rank + step if weighted else None)
        engine.step()
    with engine.gather(list(engine.module.parameters())):
        return engine.module.weight.detach().clone()


def train_window_plain(accumulation, weighted, left_out):
    layer = make_layer()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for start in range(0, 4, accumulation):
        places = itertools.product(range(start, start + accumulation), range(2))
        ran = [(step, rank) for step, rank in places if (rank, step) != (1, left_out)]
        weights = [1.0 + rank + step if weighted else 1.0 for step, rank in ran]
        total = sum(weights) if weighted else 2 * accumulation
        for weight, (step, rank) in zip(weights, ran, strict=True):
            (loss_of(layer, step, rank) * weight / total).backward()
        optimizer.step()
        optimizer.zero_grad()
    return layer.weight.detach()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_micro_batch_left_out_on_one_rank_counts_nothing_wherever_it_lies(stage):
    first, second = run_ranks(train_windows, 2, stage)
    for window, one, other in zip(WINDOWS, first, second, strict=True):
        assert torch.equal(one, other), window
        torch.testing.assert_close(
            one, train_window_plain(*window), rtol=1e-6, atol=1e-6, msg=str(window)
        )


def force_unequal_windows():
    config = {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2}
    config["optimizer"] = {"type": "SGD", "params": {"lr": 0.01}}
    engine, *_ = deepspeed.initialize(model=make_layer(), config=config)
    rank = dist.get_rank()
    for step in range(rank, 2):
        engine.set_gradient_accumulation_boundary(step == 1)
        engine.backward(loss_of(engine, step, rank))
    with pytest.raises(
        StateError, match="2 ranks had 3 micro-batches in this window, this one"
    ) as e:
        engine.step()
    return str(e.value).partition("this one ")[2][0]


def test_a_forced_window_of_other_length_on_one_rank_is_told_on_all():
    assert run_ranks(force_unequal_windows, 2) == ["2", "1"]
