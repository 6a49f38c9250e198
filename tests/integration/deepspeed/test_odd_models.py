"""Models whose tensors lie oddly in memory train, or are refused by name."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch import nn

import deepspeed
from ds_core.errors import ConfigError
from support.ranks import run_ranks

STAGES = [0, 1, 2, 3]


class Odd(nn.Module):
    """Has expanded tensors, and a frozen one of 8-bit floats."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(1).expand(4))
        self.small = nn.Parameter(torch.ones(4).to(torch.float8_e4m3fn), requires_grad=False)
        self.register_buffer("mask", torch.ones(1).expand(4))

    def forward(self, x):
        return (self.layer(x) * self.scale * self.small.float() * self.mask).square().mean()


def config_of(stage):
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }


def values(engine):
    params = [p for p in engine.module.parameters() if p.requires_grad]
    with engine.gather(params):
        return [p.detach().clone() for p in params]


def train_odd(stage, folder):
    engine, *_ = deepspeed.initialize(model=Odd(), config=config_of(stage))
    engine.backward(engine(torch.ones(1, 4)))
    engine.step()
    trained = values(engine)
    engine.save_checkpoint(folder)
    engine.load_checkpoint(folder)
    assert all(map(torch.equal, values(engine), trained))
    return trained


@pytest.mark.parametrize("stage", STAGES)
def test_expanded_tensors_and_8_bit_floats_train_as_dense_ones(stage, tmp_path):
    model = Odd()
    model.scale = nn.Parameter(torch.ones(4))
    model(torch.ones(1, 4)).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    expected = dict(model.named_parameters())
    names = [name for name, param in Odd().named_parameters() if param.requires_grad]
    for found in run_ranks(train_odd, 2, stage, str(tmp_path)):
        for name, value in zip(names, found, strict=True):
            torch.testing.assert_close(value, expected[name].detach())


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_two_parameters_in_the_same_memory_are_refused(stage):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight.data = model[0].weight.data[:]
    with pytest.raises(ConfigError, match=r"'0.weight' and '1.weight' are two parameters in"):
        deepspeed.initialize(model=model, config=config_of(stage))


def test_lazy_parameters_and_sparse_buffers_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"parameter 0.weight is of a lazy module"):
        deepspeed.initialize(model=nn.Sequential(nn.LazyLinear(2)), config=config_of(0))
    model = nn.Linear(2, 2)
    model.register_buffer("graph", torch.eye(2).to_sparse())
    with pytest.raises(ConfigError, match=r"buffer graph is torch.sparse_coo.*persistent=False"):
        deepspeed.initialize(model=model, config=config_of(0))


@pytest.mark.parametrize("rate", [None, "0.1", -1.0, True, float("nan")])
def test_a_rate_of_a_group_that_is_no_number_is_refused(rate):
    model = nn.Linear(2, 2)
    groups = [{"params": list(model.parameters()), "lr": rate}]
    with pytest.raises(ConfigError, match=r"lr of parameter group 0 is .*number of at least 0"):
        deepspeed.initialize(model=model, model_parameters=groups, config=config_of(0))


@pytest.mark.parametrize("rate", [0, numpy.float32(0.1), torch.tensor(0.1)])
def test_any_number_is_a_rate(rate):
    model = nn.Linear(2, 2)
    groups = [{"params": list(model.parameters()), "lr": rate}]
    engine, *_ = deepspeed.initialize(model=model, model_parameters=groups, config=config_of(0))
    assert engine.get_lr() == [float(rate)]
