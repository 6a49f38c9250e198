"""Each optimizer type of ds-kernels, asked for in JSON, trains as the object does by itself."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest
import torch
from torch import nn

import deepspeed
from support.ranks import run_ranks

OPTIONS = {
    "Adam": {"lr": 0.01, "weight_decay": 0.1, "max_grad_norm": 1.0, "bias_correction": False},
    "AdamW": {"lr": 0.01, "betas": [0.8, 0.9], "weight_decay": 0.1},
    "Lamb": {"lr": 0.01, "max_coeff": 0.3, "min_coeff": 0.01},
    "Lion": {"lr": 0.001},
    "Adagrad": {"lr": 0.01},
    "SGD": {"lr": 0.01, "momentum": 0.9},
    "Muon": {"muon_lr": 0.01, "adam_lr": 0.001},
}


def make_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3))


def batch(step: int) -> torch.Tensor:
    return torch.randn(2, 4, generator=torch.Generator().manual_seed(step))


def both(kind: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Final parameters of the engine, and of the optimizer in a plain loop."""
    optimizer = {"type": kind, "params": OPTIONS[kind]}
    config = {"train_micro_batch_size_per_gpu": 2, "optimizer": optimizer}
    engine, *_ = deepspeed.initialize(model=make_net(), config=config)
    plain = make_net()
    (entry,) = entry_points(group="deepspeed.optimizers", name=kind.lower())
    alone = entry.load()(plain.parameters(), OPTIONS[kind])
    for step in range(3):
        engine.backward(engine(batch(step)).square().mean())
        engine.step()
        plain(batch(step)).square().mean().backward()
        alone.step()
        alone.zero_grad()
    engine.destroy()
    return [[p.detach().clone() for p in net.parameters()] for net in (engine.module, plain)]


def every_type() -> dict[str, tuple[list[torch.Tensor], list[torch.Tensor]]]:
    return {kind: both(kind) for kind in OPTIONS}


@pytest.fixture(scope="module")
def results() -> dict[str, tuple[list[torch.Tensor], list[torch.Tensor]]]:
    (found,) = run_ranks(every_type, 1)
    return found


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_type_in_json_trains_as_the_optimizer_alone(kind: str, results) -> None:
    for mine, other in zip(*results[kind], strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
