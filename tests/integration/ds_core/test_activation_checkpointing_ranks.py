"""Kept activations split over the ranks that share a model."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ds_core.activation_checkpointing import ActivationCheckpointer, CheckpointOptions
from support.ranks import run_ranks


def train(use_reentrant, cpu, contiguous):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(7, 7), nn.Tanh(), nn.Dropout(0.2)) for _ in range(3)]
    x = torch.randn(3, 7)
    options = CheckpointOptions(
        partition_activations=True,
        cpu_checkpointing=cpu,
        contiguous_memory_optimization=contiguous,
        number_checkpoints=3,
        use_reentrant=use_reentrant,
    )
    checkpointer = ActivationCheckpointer(options, partition_group=torch.distributed.group.WORLD)
    packed, pack = [], checkpointer._keeper.pack

    def watched(tensor):
        result = pack(tensor)
        packed.append(getattr(result, "memory", result).numel())
        return result

    checkpointer._keeper.pack = watched

    def gradients(call):
        torch.manual_seed(1)
        y = x * torch.ones(1, requires_grad=True)
        for block in blocks:
            y = call(block, y)
        return torch.autograd.grad(y.square().sum(), [p for b in blocks for p in b.parameters()])

    def backward(call):
        torch.manual_seed(1)
        y = x * torch.ones(1, requires_grad=True)
        for block in blocks:
            block.zero_grad()
            y = call(block, y)
        y.square().sum().backward()
        return [p.grad.clone() for b in blocks for p in b.parameters()]

    want = gradients(lambda block, y: block(y))
    got = backward(checkpointer.checkpoint)
    equal = all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
    return equal, sorted(n for n in packed if n)


@pytest.mark.parametrize("use_reentrant", [False, True], ids=["non-reentrant", "reentrant"])
@pytest.mark.parametrize(("cpu", "contiguous"), [(False, False), (True, True)])
def test_each_rank_keeps_its_part_and_gradients_stay_the_same(use_reentrant, cpu, contiguous):
    for equal, kept in run_ranks(train, 2, use_reentrant, cpu, contiguous):
        assert equal
        assert kept == [11, 11, 11]
