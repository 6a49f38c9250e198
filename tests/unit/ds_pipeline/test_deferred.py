"""Weight gradients that wait are those of one backward pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint

from ds_pipeline import LayerSpec, PipelineModule
from ds_pipeline.deferred import DeferredWeights


class Twice(nn.Module):
    """Uses one weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, value):
        return self.linear(torch.relu(self.linear(value)))


class Scaled(nn.Module):
    """A parameter that is no weight of a layer, frozen ones and one that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.unused = nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(2))
        self.frozen, self.partly = nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 6)
        self.partly.bias.requires_grad_(False)

    def forward(self, value):
        return self.partly(self.frozen(value * self.gain)) + value


def convolution(axes, **arguments):
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
    shape = ((2, 3), (2, 3, 1), (2, 1, 3, 1))[axes - 1]
    return nn.Sequential(nn.Unflatten(1, shape), kind(2, 4, 3, **arguments))


MODULES = {
    "linear": lambda: nn.Linear(6, 6),
    "no bias": lambda: nn.Linear(6, 6, bias=False),
    "more axes": lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Linear(3, 5)),
    "mlp": lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 6)),
    "in place": lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 6)),
    "conv 1": lambda: convolution(1, padding=1),
    "conv 2": lambda: convolution(2, padding=(1, 2), stride=(1, 2), groups=2, bias=False),
    "conv 3": lambda: convolution(3, padding=1, dilation=1),
    "conv same": lambda: convolution(1, padding="same"),
    "twice": Twice,
    "scaled": Scaled,
    "computed weight": lambda: weight_norm(nn.Linear(6, 6)),
    "nothing": nn.Identity,
}


def gradients(make, run, **arguments):
    torch.manual_seed(0)
    module = PipelineModule([LayerSpec(nn.Tanh), make()], 1, **arguments)
    value = torch.randn(4, 6, requires_grad=True)
    run(module, value)
    run(module, value)  # adds to what is there
    found = {name: param.grad for name, param in module.named_parameters()}
    return found | {"input": value.grad}


def at_once(module, value):
    module(value).square().sum().backward()


def in_parts(module, value):
    later = DeferredWeights()
    module.run(value, inside=later).square().sum().backward()
    later.run()


def assert_same(parts, whole):
    assert whole.keys() == parts.keys()
    for name, expected in whole.items():
        if expected is None:
            assert parts[name] is None, name
        else:
            torch.testing.assert_close(parts[name], expected, msg=name)


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_two_parts_equal_one_pass(make):
    assert_same(gradients(make, in_parts), gradients(make, at_once))


@pytest.mark.parametrize("reentrant", [False, True], ids=["saved tensors", "reentrant"])
@pytest.mark.parametrize("name", ["mlp", "twice", "conv 2"])
def test_recomputed_activations_wait_too(name, reentrant):
    waiting = []

    def recomputing(run, *inputs):
        return checkpoint(run, *inputs, use_reentrant=reentrant)

    def run(module, value):
        later = DeferredWeights()
        module.run(value, inside=later).square().sum().backward()
        waiting.extend(n for n, p in module.named_parameters() if p.grad is None)
        later.run()

    arguments = {"activation_checkpoint_interval": 2, "activation_checkpoint_func": recomputing}
    assert_same(gradients(MODULES[name], run, **arguments), gradients(MODULES[name], at_once))
    assert waiting


def test_low_precision_by_autocast_gives_the_same_bits():
    def run(split):
        torch.manual_seed(0)
        module, value = MODULES["mlp"](), torch.randn(4, 6, requires_grad=True)
        later = DeferredWeights()
        with torch.autocast("cpu", torch.bfloat16), later if split else torch.enable_grad():
            output = module(value)
        output.float().square().sum().backward()
        later.run()
        return [value.grad, *(param.grad for param in module.parameters())]

    for found, expected in zip(run(True), run(False), strict=True):
        assert found.dtype == expected.dtype
        torch.testing.assert_close(found, expected)


def test_weights_get_nothing_before_their_part():
    linear = nn.Linear(6, 6)
    value = torch.randn(4, 6, requires_grad=True)
    fired = []
    linear.weight.register_post_accumulate_grad_hook(lambda param: fired.append("weight"))
    later = DeferredWeights()
    with later:
        output = linear(value)
    output.sum().backward()
    assert value.grad is not None
    assert (linear.weight.grad, linear.bias.grad, fired) == (None, None, [])
    later.run()
    assert fired == ["weight"]
    with later:
        output = linear(value)
    output.sum().backward()
    later.run()
    assert fired == ["weight", "weight"]


def test_hooks_see_gradients_that_waited():
    linear, seen = nn.Linear(6, 6), []
    linear.weight.register_hook(lambda grad: seen.append(grad.sum().item()))
    for _ in range(2):
        later = DeferredWeights()
        with later:
            output = linear(torch.ones(4, 6, requires_grad=True))
        output.sum().backward()
        later.run()
    assert seen == [144.0, 144.0]


def test_an_input_without_a_gradient_leaves_nothing_to_wait():
    linear = nn.Linear(6, 6)
    later = DeferredWeights()
    with later:
        output = linear(torch.ones(4, 6))
    output.sum().backward()
    assert torch.equal(linear.weight.grad, torch.full((6, 6), 4.0))


def test_compiled_layers_give_the_same():
    def compiled():
        module = MODULES["mlp"]()
        module.compile(backend="eager")
        return module

    assert_same(gradients(compiled, in_parts), gradients(MODULES["mlp"], at_once))
