"""Compiled models train like eager ones; where a stage cannot be compiled it says so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import deepspeed
from ds_core.errors import StateError

STEPS = 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.norm(self.first(x)))).square().mean()


def start(model: nn.Module, stage: int):
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    return deepspeed.initialize(model=model, config=config)[0]


def train(engine) -> list[float]:
    """Losses of sequences that get longer."""
    losses = []
    for step in range(STEPS):
        data = torch.randn(2, 3 + step, 8, generator=torch.Generator().manual_seed(step))
        loss = engine(data)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def net() -> Net:
    torch._dynamo.reset()
    torch.manual_seed(0)
    return Net()


def compiled_before(stage: int):
    return start(torch.compile(net(), backend="aot_eager"), stage)


def compiled_in_place(stage: int):
    model = net()
    model.compile(backend="aot_eager")
    return start(model, stage)


def compiled_in_part(stage: int):
    model = net()
    model.first = torch.compile(model.first, backend="aot_eager")
    return start(model, stage)


def compiled_after(stage: int):
    engine = start(net(), stage)
    engine.compile(backend="aot_eager")
    return engine


WAYS = [compiled_before, compiled_in_place, compiled_in_part, compiled_after]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_losses_are_those_of_the_eager_model_and_names_stay(way, stage, caplog):
    eager = start(net(), stage)
    expected = train(eager)
    engine = way(stage)
    assert train(engine) == pytest.approx(expected, rel=1e-5)
    if way is not compiled_in_part:
        assert engine.module_state_dict().keys() == eager.module_state_dict().keys()
    assert ("runs eagerly" in caplog.text) == (stage == 3)


def test_compiling_the_module_behind_the_engine_is_refused_at_stage_3():
    engine = start(net(), 3)
    engine.module.compile(backend="aot_eager")
    with pytest.raises(StateError, match="use stage 2"):
        train(engine)
