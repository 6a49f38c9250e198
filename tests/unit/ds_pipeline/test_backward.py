"""A backward pass in two parts gives what one pass gives."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ds_pipeline.backward import SplitBackward


class Twice(nn.Module):
    """Uses one weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, value):
        return self.linear(torch.relu(self.linear(value)))


class Scaled(nn.Module):
    """A parameter that is no weight of a layer, a frozen one and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.unused = nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(2))
        self.frozen = nn.Linear(6, 6).requires_grad_(False)

    def forward(self, value):
        return self.frozen(value * self.gain) + value


class Recomputed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = nn.Linear(6, 6), reentrant

    def forward(self, value):
        return checkpoint(self.inner, value, use_reentrant=self.reentrant)


MODULES = {
    "linear": lambda: nn.Linear(6, 6),
    "mlp": lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 6)),
    "conv": lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 2, 3, padding=1)),
    "twice": Twice,
    "scaled": Scaled,
    "nothing": nn.Identity,
    "recomputed": lambda: nn.Sequential(nn.Linear(6, 6), Recomputed(False)),
    "reentrant": lambda: nn.Sequential(nn.Linear(6, 6), Recomputed(True)),
}


def gradients(make, run):
    torch.manual_seed(0)
    module = make()
    value = torch.randn(4, 6, requires_grad=True)
    output = module(value) * 1.0
    grad = torch.randn(output.shape)
    run(output, grad, value)
    found = {name: param.grad for name, param in module.named_parameters()}
    return found | {"input": value.grad}


def in_parts(output, grad, value):
    split = SplitBackward([output], [grad], [value])
    split.run_inputs()
    split.run_weights()


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_two_parts_equal_one_pass(make):
    whole = gradients(make, lambda output, grad, value: output.backward(grad))
    parts = gradients(make, in_parts)
    assert whole.keys() == parts.keys()
    for name, expected in whole.items():
        if expected is None:
            assert parts[name] is None, name
        else:
            torch.testing.assert_close(parts[name], expected, msg=name)


def test_weights_get_nothing_before_their_part():
    linear = nn.Linear(6, 6)
    value = torch.randn(4, 6, requires_grad=True)
    fired = []
    linear.weight.register_post_accumulate_grad_hook(lambda param: fired.append("weight"))
    output = linear(value)
    split = SplitBackward([output], [torch.ones_like(output)], [value])
    split.run_inputs()
    assert value.grad is not None
    assert (linear.weight.grad, fired) == (None, [])
    split.run_weights()
    assert fired == ["weight"]


@pytest.mark.parametrize(("name", "whole"), [("mlp", False), ("twice", True), ("reentrant", True)])
def test_graphs_that_cannot_be_cut_are_run_whole(name, whole):
    value = torch.randn(4, 6, requires_grad=True)
    output = MODULES[name]()(value)
    assert SplitBackward([output], [torch.ones_like(output)], [value]).whole is whole


def test_a_stage_without_inputs_that_need_gradients_is_run_whole():
    output = nn.Linear(6, 6)(torch.randn(4, 6))
    split = SplitBackward([output], [torch.ones_like(output)], [])
    assert split.whole
