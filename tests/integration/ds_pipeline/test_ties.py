"""Tied weights stay equal on all stages, and equal to one process."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ds_core.errors import ConfigError
from ds_pipeline import LayerSpec, PipelineModule, TiedLayerSpec
from support.pipelines import Case, Whole, engine_over
from support.ranks import run_ranks

WIDTH = 4


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, value):
        return self.inner(value) * self.scale


def backwards(module, value):
    return value @ module.inner.weight * module.scale


def nested(key, **arguments):
    names = ["inner.weight", "scale"]
    return TiedLayerSpec(key, Nested, tied_weight_attr=names, **arguments)


def layers(last_first=False):
    """Two keys, which the stages meet in different orders."""
    return [
        nested("b"),
        nested("a"),
        LayerSpec(nn.Linear, WIDTH, WIDTH),
        torch.tanh,
        nested("a", forward_fn=backwards),
        nested("b", forward_fn=backwards),
    ]


def mse(output, target):
    return (output - target).square().mean()


def batch(number):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(3, WIDTH, generator=generator), torch.ones(3, WIDTH)


def train(stages, dtype=torch.float32):
    module = PipelineModule(
        layers(), stages, loss_fn=mse, seed_layers=True, partition_method="uniform"
    )
    engine = engine_over(module, Case(stages=stages, micro_batches=2, max_norm=0.5, dtype=dtype))
    norms = []
    for step in range(10):
        data = [(inputs.to(dtype), labels) for inputs, labels in map(batch, (step, step + 50))]
        engine.train_batch(iter(data))
        norms.append(engine.last_report.grad_norm)
    held = {n: engine.strategy.held(p).detach().clone() for n, p in module.named_parameters()}
    return norms, held


def train_alone():
    model = Whole(layers())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    norms = []
    for step in range(10):
        parts = [batch(step), batch(step + 50)]
        (sum(mse(model(inputs), labels) for inputs, labels in parts) / 2).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        optimizer.step()
        optimizer.zero_grad()
    return norms, dict(model.named_parameters())


@pytest.mark.parametrize("stages", [2, 3])
def test_copies_are_equal_to_the_bit_and_train_like_one_process(stages):
    norms, weights = train_alone()
    results = run_ranks(train, stages, stages)
    for found, held in results:
        torch.testing.assert_close(found, norms, rtol=1e-5, atol=1e-6)
        for name, value in held.items():
            torch.testing.assert_close(value, weights[name].detach(), rtol=1e-5, atol=1e-6)
    first, last = results[0][1], results[-1][1]
    shared = [name for name in first if name in last]
    assert len(shared) >= 3
    assert all(torch.equal(first[name], last[name]) for name in shared)


def test_masters_of_low_precision_copies_are_equal_to_the_bit():
    results = run_ranks(train, 2, 2, torch.bfloat16)
    first, last = (held for _, held in results)
    assert all(torch.equal(first[name], last[name]) for name in first if name in last)
    assert first["tied_modules.a.scale"].dtype == torch.float32


def unknown_attribute():
    spec = TiedLayerSpec("x", Nested, tied_weight_attr="inner.wait")
    with pytest.raises(ConfigError, match=r"no parameter 'inner.wait'; it has scale, inner.weight"):
        PipelineModule([spec, nn.Identity(), spec], 1)


def test_an_unknown_attribute_is_named():
    unknown_attribute()
