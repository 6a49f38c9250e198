"""Buckets hold every gradient once, whatever their size and however backward runs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from ds_core.buckets import GradientBuckets, make_buckets, plan_buckets, trained_params
from ds_core.comm import DONE
from ds_core.errors import StateError
from ds_core.precision import PrecisionSettings


@given(st.lists(st.integers(0, 50)), st.integers(1, 120))
def test_a_plan_holds_each_parameter_once_last_first(numels, limit):
    plan = plan_buckets(numels, limit)
    assert [index for bucket in plan for index in bucket] == list(reversed(range(len(numels))))
    for bucket in plan:
        assert (
            sum(numels[index] for index in bucket) <= limit
            or len([index for index in bucket if numels[index]]) == 1
        )


def buckets_of(module, size=10**6, **options):
    launched = []

    def launch(bucket):
        launched.append(bucket.index)
        return DONE

    params = list(module.parameters())
    made = make_buckets(params, max_elements=size, accumulate_in=PrecisionSettings().accumulate_in)
    names = {param: name for name, param in module.named_parameters()}
    return GradientBuckets(made, launch=launch, world_size=1, names=names, **options), launched


def one_pass(buckets, loss, *, sync=True):
    buckets.begin_pass(sync=sync)
    loss.backward()
    if sync:
        buckets.finish_sync()


@pytest.mark.parametrize("size", [1, 7, 10**6])
@pytest.mark.parametrize("overlap", [True, False])
def test_buckets_are_launched_once_in_order_every_step(size, overlap):
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    buckets, launched = buckets_of(module, size, overlap=overlap)
    for _ in range(3):
        one_pass(buckets, module(torch.ones(2, 3)).sum())
        buckets.clear()
    count = len(buckets.buckets)
    assert launched == list(range(count)) * 3


def test_overlap_launches_before_backward_ends():
    module = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    buckets, launched = buckets_of(module, 1)
    one_pass(buckets, module(torch.ones(2, 3)).sum())
    buckets.clear()
    launched.clear()
    buckets.begin_pass(sync=True)
    module(torch.ones(2, 3)).sum().backward()
    assert launched == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_gradients_accumulate_over_passes(dtype):
    module = nn.Linear(3, 2).to(dtype)
    buckets, _ = buckets_of(module)
    for number in range(3):
        one_pass(buckets, module(torch.ones(1, 3, dtype=dtype)).sum(), sync=number == 2)
    for param in module.parameters():
        assert torch.equal(buckets.gradient(param), torch.full_like(buckets.gradient(param), 3))


def test_bfloat16_gradients_accumulate_in_fp32():
    param = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    module = nn.ParameterList([param])
    buckets, _ = buckets_of(module)
    for number in range(256):
        buckets.begin_pass(sync=number == 255)
        (param * (1.0 if number == 0 else 1e-3)).sum().backward()
    buckets.finish_sync()
    assert buckets.gradient(param).item() == pytest.approx(1.255, rel=2e-3)


def test_a_parameter_nobody_used_is_told_apart_from_a_zero_gradient():
    used, zero, unused = (nn.Parameter(torch.ones(2)) for _ in range(3))
    buckets, _ = buckets_of(nn.ParameterList([used, zero, unused]))
    one_pass(buckets, (used + 0 * zero).sum())
    assert buckets.unused() == {unused}


def test_clearing_a_parameters_gradient_forgets_it():
    module = nn.Linear(3, 2)
    buckets, _ = buckets_of(module)
    one_pass(buckets, module(torch.ones(1, 3)).sum(), sync=False)
    module.zero_grad()
    one_pass(buckets, module(torch.ones(1, 3)).sum())
    assert torch.equal(buckets.gradient(module.weight), torch.ones(2, 3))


def test_create_graph_does_not_count_twice():
    module = nn.Linear(3, 2)
    buckets, _ = buckets_of(module)
    one_pass(buckets, module(torch.ones(1, 3)).sum(), sync=False)
    buckets.begin_pass(sync=True)
    with pytest.warns(UserWarning, match="create_graph"):
        module(torch.ones(1, 3)).sum().backward(create_graph=True)
    buckets.finish_sync()
    assert torch.equal(buckets.gradient(module.weight), torch.full((2, 3), 2.0))


def test_a_block_used_twice_under_reentrant_checkpointing_is_right():
    module = nn.Linear(3, 3)
    buckets, _ = buckets_of(module)
    for _ in range(3):
        hidden = torch.ones(1, 3, requires_grad=True)
        for _ in range(2):
            hidden = checkpoint(module, hidden, use_reentrant=True)
        one_pass(buckets, hidden.sum())
        found = buckets.gradient(module.weight).clone()
        buckets.clear()
    expected = torch.autograd.grad(module(module(torch.ones(1, 3))).sum(), module.weight)[0]
    assert torch.allclose(found, expected)


def test_more_reentrant_uses_than_in_the_first_step_are_an_error_with_a_remedy():
    module = nn.Linear(3, 3)
    buckets, _ = buckets_of(module, 1)
    one_pass(buckets, module(torch.ones(1, 3)).sum())
    buckets.clear()
    hidden = torch.ones(1, 3, requires_grad=True)
    for _ in range(2):
        hidden = checkpoint(module, hidden, use_reentrant=True)
    buckets.begin_pass(sync=True)
    with pytest.raises(StateError, match=r"use_reentrant=False"):
        hidden.sum().backward()


def test_a_plain_backward_after_the_window_closed_is_refused():
    module = nn.Linear(3, 2)
    buckets, _ = buckets_of(module)
    one_pass(buckets, module(torch.ones(1, 3)).sum())
    with pytest.raises(StateError, match=r"'(weight|bias)' got a gradient"):
        module(torch.ones(1, 3)).sum().backward()


def test_closing_leaves_no_hook_and_no_gradient():
    module = nn.Linear(3, 2)
    buckets, launched = buckets_of(module)
    one_pass(buckets, module(torch.ones(1, 3)).sum())
    buckets.close()
    launched.clear()
    module(torch.ones(1, 3)).sum().backward()
    assert launched == []
    assert torch.equal(module.weight.grad, torch.ones(2, 3))


def test_trained_params_leaves_out_frozen_and_repeated_ones():
    first, second, frozen = (nn.Parameter(torch.ones(1)) for _ in range(3))
    frozen.requires_grad_(False)
    groups = [{"params": [first, frozen]}, {"params": [second, first]}]
    assert trained_params(groups) == [first, second]
