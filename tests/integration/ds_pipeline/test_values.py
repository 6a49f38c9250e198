"""What passes between stages arrives as it was, and gradients only where they are needed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ds_pipeline import LayerSpec, PipelineModule, links
from ds_pipeline.shared_memory import Outbox
from support.pipelines import Case, Whole, engine_over
from support.ranks import run_ranks

WIDTH = 4


class Open(nn.Module):
    """Makes a tuple of all kinds of values."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, value):
        mask, spare = value > 0, value.detach() * 2
        return self.linear(value), spare, mask.int(), mask, None, 3, torch.tensor(2.5), True


class Pass(nn.Module):
    """Uses everything, and checks what it got."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, values):
        hidden, spare, ints, mask, none, three, scalar, flag = values
        kinds = [v.dtype for v in (hidden, spare, ints, mask, scalar)]
        wanted = [torch.float32, torch.float32, torch.int32, torch.bool, torch.float32]
        needs = [v.requires_grad for v in (hidden, spare, ints, mask, scalar)]
        if kinds != wanted or needs != [torch.is_grad_enabled(), False, False, False, False]:
            raise AssertionError((kinds, needs))
        if none is not None or type(three) is not int or type(flag) is not bool:
            raise AssertionError((none, three, flag))
        hidden = self.linear(hidden) * scalar + spare * ints * three
        return (hidden.masked_fill(mask, 0.1), *values[1:])


class Close(nn.Module):
    def forward(self, values):
        return values[0]


class Branch(nn.Module):
    """Two outputs with gradients, of which the next stage ignores one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, value):
        return self.linear(value), value * 2


class Refill(nn.Module):
    """Changes the dict that it got, and the list in it, in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, values):
        if torch.is_tensor(values):
            values = {"hidden": values, "seen": [values]}
        values["hidden"] = self.linear(values["hidden"]) + values["seen"].pop()
        values["seen"].append(values["hidden"] * 0.5)
        return values


class Take(nn.Module):
    def forward(self, values):
        return values["hidden"]


class Ask(nn.Module):
    """Asks for a gradient of its input, as runs that recompute activations may."""

    def __init__(self, trained: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH).requires_grad_(trained)

    def forward(self, value):
        return self.linear(value.requires_grad_() if value.is_leaf else value)


def tuple_layers():
    return [LayerSpec(Open), LayerSpec(Pass), LayerSpec(Pass), LayerSpec(Close)]


def ignoring_layers():
    return [LayerSpec(nn.Linear, WIDTH, WIDTH), LayerSpec(Branch), LayerSpec(Close)]


def refilling_layers():
    return [*(LayerSpec(Refill) for _ in range(4)), LayerSpec(Take)]


def asking_layers():
    return [LayerSpec(Ask, trained) for trained in (False, False, True, True)]


LAYERS = {
    "tuples": tuple_layers,
    "ignored": ignoring_layers,
    "refilled": refilling_layers,
    "asked for": asking_layers,
}


def mse(output, target):
    return (output - target).square().mean()


def batch(step, rows):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(rows, WIDTH, generator=generator), torch.zeros(rows, WIDTH)


class FullNowAndThen(Outbox):
    """Has no room for every second message."""

    calls = 0

    def place(self, size):
        self.calls += 1
        return super().place(size) if self.calls % 2 else None


def travel(way):
    """Let messages take a way in this process."""
    if way == "group":
        links.sharing_processes = lambda comm, *, willing: [None] * comm.world_size
    if way == "both":
        links.Outbox = FullNowAndThen


def losses_in_pipeline(name, stages, sizes, way="shared memory"):
    """One loss a step, each step with micro-batches of its own size."""
    travel(way)
    layers = LAYERS[name]()
    module = PipelineModule(
        layers, stages, loss_fn=mse, seed_layers=True, partition_method="uniform"
    )
    engine = engine_over(module, Case(stages=stages, micro_batches=2, max_norm=0.0))
    losses = []
    for step, rows in enumerate(sizes):
        micro_batches = iter([batch(step, rows), batch(step + 100, rows + 1)])
        losses.append(engine.train_batch(micro_batches).item())
    return losses


def losses_alone(name, sizes):
    model = Whole(LAYERS[name]())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    losses = []
    for step, rows in enumerate(sizes):
        parts = [batch(step, rows), batch(step + 100, rows + 1)]
        loss = sum(mse(model(inputs), labels) for inputs, labels in parts) / 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("way", ["shared memory", "group", "both"])
def test_tuples_of_all_kinds_cross_two_and_three_stages(way):
    sizes = [3, 3, 5, 2]
    expected = torch.tensor(losses_alone("tuples", sizes))
    for stages in (2, 3):
        for losses in run_ranks(losses_in_pipeline, stages, "tuples", stages, sizes, way):
            torch.testing.assert_close(torch.tensor(losses), expected, rtol=1e-6, atol=1e-6)


def test_an_output_that_the_next_stage_ignores_gets_no_gradient():
    expected = torch.tensor(losses_alone("ignored", [3, 3, 3]))
    for losses in run_ranks(losses_in_pipeline, 3, "ignored", 3, [3, 3, 3]):
        torch.testing.assert_close(torch.tensor(losses), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["refilled", "asked for"])
def test_gradients_are_those_of_what_came_whatever_layers_do_with_it(name):
    expected = torch.tensor(losses_alone(name, [3, 3, 3]))
    for losses in run_ranks(losses_in_pipeline, 3, name, 3, [3, 3, 3]):
        torch.testing.assert_close(torch.tensor(losses), expected, rtol=1e-6, atol=1e-6)


class Mask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, value):
        return self.linear(value), torch.ones_like(value)


class ChangeMask(nn.Module):
    """Changes one part of its input while backward needs another."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, values):
        hidden, mask = values
        scaled = hidden * self.weight
        mask[:, 0] = 0.5
        return scaled * mask


def changing_layers():
    return [LayerSpec(Mask), LayerSpec(ChangeMask)]


LAYERS["changed"] = changing_layers


def test_a_stage_may_change_parts_of_its_input_in_place():
    expected = torch.tensor(losses_alone("changed", [3, 3]))
    for losses in run_ranks(losses_in_pipeline, 2, "changed", 2, [3, 3]):
        torch.testing.assert_close(torch.tensor(losses), expected, rtol=1e-6, atol=1e-6)
