"""Gradients with activation checkpointing equal those without."""

from __future__ import annotations

import gc
import logging
import weakref

import pytest
import torch
from torch import nn

from ds_core.activation_checkpointing import ActivationCheckpointer, CheckpointOptions
from ds_core.activation_checkpointing.keep import Arena, own_part
from ds_core.errors import ConfigError, StateError

KEEP = {
    "plain": {},
    "cpu": {"cpu_checkpointing": True},
    "contiguous": {"contiguous_memory_optimization": True, "number_checkpoints": 2},
    "cpu contiguous": {
        "cpu_checkpointing": True,
        "contiguous_memory_optimization": True,
        "number_checkpoints": 1,
    },
}


@pytest.fixture(params=[False, True], ids=["non-reentrant", "reentrant"])
def reentrant(request):
    return request.param


@pytest.fixture(params=KEEP, ids=str)
def checkpointer(request, reentrant):
    return ActivationCheckpointer(CheckpointOptions(use_reentrant=reentrant, **KEEP[request.param]))


class Block(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Dropout(dropout), nn.Linear(12, 6))
        self.calls = 0

    def forward(self, x, mask=None, *, scale=1.0):
        self.calls += 1
        y = x + self.net(x) * scale
        return y if mask is None else y * mask


def direct(function, *args, **kwargs):
    return function(*args, **kwargs)


def gradients(call, blocks, x, **kwargs):
    torch.manual_seed(3)
    for block in blocks:
        block.zero_grad()
    h = x.clone().requires_grad_()
    y = h * 1
    for block in blocks:
        y = call(block, y, **kwargs)
    y.square().mean().backward()
    return [h.grad, *(p.grad.clone() for block in blocks for p in block.parameters())]


def same(a, b):
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_gradients_are_those_of_a_plain_call(checkpointer, dropout):
    torch.manual_seed(0)
    blocks, x = [Block(dropout) for _ in range(3)], torch.randn(5, 6)
    mask = torch.rand(5, 6) > 0.3
    want = gradients(direct, blocks, x, mask=mask, scale=0.5)
    for _ in range(3):
        same(gradients(checkpointer.checkpoint, blocks, x, mask=mask, scale=0.5), want)
    assert all(block.calls == 1 + 3 * 2 for block in blocks)


def test_a_block_that_no_input_needs_a_gradient_for_trains(checkpointer):
    block, x = Block(), torch.randn(4, 6)
    checkpointer(block, x).sum().backward()
    grads = [p.grad.clone() for p in block.parameters()]
    block.zero_grad()
    block(x).sum().backward()
    same(grads, [p.grad for p in block.parameters()])


def test_arguments_and_results_of_any_form(checkpointer):
    def function(pair, none, *, table, number, flag):
        assert none is None
        assert flag
        (a, b), c = pair, table["c"]
        return {"sum": a + b * number, "rest": [c * a, None, "text"]}, 7

    def run(call):
        a, b, c = (torch.arange(3.0).requires_grad_() for _ in range(3))
        out, seven = call(function, (a * 1, b), None, table={"c": c}, number=2, flag=True)
        assert seven == 7
        assert out["rest"][1:] == [None, "text"]
        (out["sum"].sum() + out["rest"][0].square().sum()).backward()
        return a.grad, b.grad, c.grad

    same(run(checkpointer.checkpoint), run(direct))


def test_without_gradients_it_is_a_plain_call(checkpointer):
    block, x = Block(), torch.randn(4, 6)
    with torch.no_grad():
        y = checkpointer(block, x)
    assert y.grad_fn is None
    assert block.calls == 1


def test_checkpoints_inside_of_checkpoints(checkpointer):
    torch.manual_seed(0)
    blocks, x = [Block(0.3), Block(0.3)], torch.randn(5, 6)

    def outer(block, y):
        return checkpointer(inner, block, y * 2)

    def inner(block, y):
        return checkpointer(block, y + 1)

    def plain(block, y):
        return block(y * 2 + 1)

    want = gradients(plain, blocks, x)
    same(gradients(lambda block, y: checkpointer(outer, block, y), blocks, x), want)


def test_random_numbers_of_the_program_go_on_as_without(checkpointer):
    block, x = Block(0.5), torch.randn(4, 6)
    torch.manual_seed(5)
    block(x).sum().backward()
    want = torch.rand(3)
    torch.manual_seed(5)
    checkpointer(block, x).sum().backward()
    same([torch.rand(3)], [want])


def test_named_random_states_are_repeated(checkpointer):
    rng = checkpointer.rng
    rng.add("mine", 17)
    seen = []

    def function(x):
        with rng.fork("mine"):
            noise = torch.rand(3)
        seen.append(noise)
        return x * noise

    x = torch.ones(3, requires_grad=True)
    first, second = checkpointer(function, x), checkpointer(function, x)
    after = rng.get_states()["mine"].clone()
    (first.sum() + second.sum()).backward()
    assert torch.equal(rng.get_states()["mine"], after)
    assert torch.equal(seen[0], seen[3])
    assert torch.equal(seen[1], seen[2])
    assert not torch.equal(seen[0], seen[1])
    same([x.grad], [seen[0] + seen[1]])


def test_activations_inside_are_not_kept(checkpointer):
    kept = []

    def function(x):
        hidden = x.sin()
        kept.append(weakref.ref(hidden))
        return hidden.cos()

    y = checkpointer(function, torch.ones(4, requires_grad=True) * 1)
    gc.collect()
    assert kept[0]() is None
    y.sum().backward()


def test_gradients_of_gradients_and_autograd_grad_work_without_reentry():
    checkpointer = ActivationCheckpointer()
    x = torch.tensor([2.0], requires_grad=True)
    (first,) = torch.autograd.grad(checkpointer(lambda v: v**3, x), x, create_graph=True)
    (second,) = torch.autograd.grad(first, x)
    assert (first.item(), second.item()) == (12.0, 12.0)


def test_an_input_changed_in_place_is_refused_where_it_would_be_wrong():
    options = CheckpointOptions(use_reentrant=True, cpu_checkpointing=True)
    x = torch.ones(3, requires_grad=True) * 1
    with pytest.raises(StateError, match="changed an input in place"):
        ActivationCheckpointer(options)(lambda v: v.mul_(2), x)


def test_autocast_of_the_forward_holds_in_the_second_run(checkpointer):
    seen, block = [], Block()

    def function(x):
        y = block(x)
        seen.append(block.net[0](x).dtype)
        return y

    with torch.autocast("cpu", torch.bfloat16):
        y = checkpointer(function, torch.randn(4, 6, requires_grad=True))
    y.sum().backward()
    assert seen == [torch.bfloat16] * 2


@pytest.mark.parametrize("option", ["profile", "synchronize_checkpoint_boundary"])
def test_profile_logs_each_run(caplog, reentrant, option):
    options = CheckpointOptions(use_reentrant=reentrant, **{option: True})
    with caplog.at_level(logging.INFO, "ds_core"):
        ActivationCheckpointer(options)(Block(), torch.ones(2, 6)).sum().backward()
    words = [record.getMessage().split()[2] for record in caplog.records]
    assert words == (["forward", "recompute"] if option == "profile" else [])


def test_buffers_need_to_know_how_many():
    with pytest.raises(ConfigError, match="number_checkpoints"):
        ActivationCheckpointer(CheckpointOptions(contiguous_memory_optimization=True))
    with pytest.raises(ConfigError, match="at least 1"):
        ActivationCheckpointer(
            CheckpointOptions(contiguous_memory_optimization=True, number_checkpoints=0)
        )


def test_a_buffer_is_used_again_when_its_slots_are_free():
    arena = Arena(2)
    slots = [arena.take(5, torch.float32, torch.device("cpu")) for _ in range(3)]
    places = {slot.memory.data_ptr() for slot in slots}
    assert len(places) == 3
    assert slots[0].memory.data_ptr() + 20 == slots[1].memory.data_ptr()
    slots.clear()
    again = [arena.take(5, torch.float32, torch.device("cpu")) for _ in range(4)]
    assert {slot.memory.data_ptr() for slot in again} >= places


def test_training_steps_use_the_same_buffers():
    options = CheckpointOptions(contiguous_memory_optimization=True, number_checkpoints=3)
    checkpointer = ActivationCheckpointer(options)
    blocks, x = [Block() for _ in range(3)], torch.randn(5, 6)
    for _ in range(4):
        gradients(checkpointer.checkpoint, blocks, x)
    (free,) = checkpointer._keeper._arena._free.values()
    assert len(free) == 3


@pytest.mark.parametrize("numel", [1, 7, 8, 9])
@pytest.mark.parametrize("parts", [1, 2, 5])
def test_parts_rebuild_the_whole(numel, parts):
    flat = torch.arange(float(numel))
    pieces = [own_part(flat, rank, parts) for rank in range(parts)]
    assert len({piece.numel() for piece in pieces}) == 1
    assert torch.equal(torch.cat(pieces)[:numel], flat)
