"""The accumulation window closes where it should and divides by what it saw."""

import pytest
import torch

from ds_core.comm import Communicator
from ds_core.errors import ConfigError
from ds_core.window import AccumulationWindow


def window(steps: int) -> AccumulationWindow:
    return AccumulationWindow(steps, Communicator.alone())


def add(target, *, weight=None, divided=False):
    closing = target.will_close()
    target.add(weight, divided=divided)
    return closing, target.divisor(closing=closing).mean


@pytest.mark.parametrize("steps", [1, 2, 3, 8])
def test_closes_at_the_last_micro_batch_and_divides_by_their_number(steps):
    target = window(steps)
    assert [add(target) for _ in range(steps)] == [(n == steps, steps) for n in range(1, steps + 1)]
    assert target.is_boundary()
    target.close()
    assert target.is_boundary() == (steps == 1)


def test_a_forced_boundary_divides_by_what_was_seen():
    target = window(4)
    add(target)
    target.forced = True
    assert add(target) == (True, 2)


def test_a_forced_boundary_may_come_late():
    target = window(2)
    target.forced = False
    for _ in range(3):
        add(target)
    target.forced = True
    assert add(target) == (True, 4)


def test_two_losses_before_one_step_add_up():
    target = window(1)
    assert [add(target), add(target)] == [(True, 1), (True, 1)]


def test_a_loss_that_was_divided_already_is_only_averaged_over_ranks():
    target = window(4)
    assert [add(target, divided=True) for _ in range(4)] == [(False, 1)] * 3 + [(True, 1)]


def test_weights_make_the_mean_a_weighted_one():
    target = window(2)
    add(target, weight=10.0)
    assert add(target, weight=30.0) == (True, 40.0)


def test_weights_for_some_micro_batches_only_are_refused():
    target = window(3)
    add(target)
    with pytest.raises(ConfigError, match="with and without a weight"):
        target.add(2.0, divided=False)


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf"), 1e-320])
def test_a_weight_must_be_positive(weight):
    with pytest.raises(ConfigError, match="must be positive"):
        AccumulationWindow.as_weight(weight)


@pytest.mark.parametrize("weight", ["many", [3], 3j, torch.ones(2), 10**400])
def test_a_weight_must_be_one_number(weight):
    with pytest.raises(ConfigError, match="must be one number"):
        AccumulationWindow.as_weight(weight)


@pytest.mark.parametrize("weight", [3, torch.tensor([3]), torch.tensor(3.0, requires_grad=True)])
def test_a_weight_may_be_any_kind_of_number(weight):
    assert AccumulationWindow.as_weight(weight) == 3.0
