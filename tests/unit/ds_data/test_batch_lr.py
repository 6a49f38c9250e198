"""The learning rate follows the batch size."""

import json
import math

import pytest
import torch

from ds_data import RuleError, VariableBatchLR, scale_lr

SIZES = [8, 16, 4]


def optimizer(lr=1.0):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)


def rates(target, schedule, steps):
    seen = []
    for _ in range(steps):
        seen.append(target.param_groups[0]["lr"])
        target.step()
        schedule.step()
    return seen


@pytest.mark.parametrize(
    ("method", "factors"),
    [
        ("linear", [1, 2, 0.5]),
        ("sqrt", [1, math.sqrt(2), math.sqrt(0.5)]),
        ("none", [1, 1, 1]),
        (None, [1, 1, 1]),
    ],
)
def test_factors_by_method(method, factors):
    target = optimizer(0.1)
    schedule = VariableBatchLR(target, base_batch_size=8, batch_sizes=SIZES, method=method)
    assert rates(target, schedule, 3) == pytest.approx([0.1 * f for f in factors])


def test_worked_numbers_of_the_document():
    target = optimizer(1e-3)
    schedule = VariableBatchLR(target, base_batch_size=2, batch_sizes=[10, 4])
    assert rates(target, schedule, 2) == pytest.approx([5e-3, 2e-3])


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20),
        lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: 1 / (1 + k)),
    ],
)
def test_on_top_of_a_schedule_the_factors_multiply(make):
    alone, both = optimizer(), optimizer()
    plain = rates(alone, make(alone), 7)
    scaled = VariableBatchLR(make(both), base_batch_size=8, batch_sizes=SIZES)
    wanted = [rate * SIZES[k % 3] / 8 for k, rate in enumerate(plain)]
    assert rates(both, scaled, 7) == pytest.approx(wanted)


def test_resume_gives_the_same_next_rates():
    def build():
        target = optimizer()
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(target, 20)
        return target, VariableBatchLR(cosine, base_batch_size=8, batch_sizes=SIZES)

    target, schedule = build()
    rates(target, schedule, 2)
    state = json.loads(json.dumps(schedule.state_dict()))
    resumed_target, resumed = build()
    resumed.load_state_dict(state)
    assert rates(resumed_target, resumed, 5) == rates(target, schedule, 5)


def test_step_zero_goes_back_to_the_first_batch_without_restarting_the_schedule():
    target = optimizer()
    decay = torch.optim.lr_scheduler.ExponentialLR(target, 0.5)
    schedule = VariableBatchLR(decay, base_batch_size=8, batch_sizes=SIZES)
    rates(target, schedule, 2)
    schedule.step(0)
    assert schedule.get_lr() == pytest.approx([0.25 * 1.0])


def test_step_zero_goes_to_the_batch_that_a_resumed_loader_begins_with():
    first = [0]
    schedule = VariableBatchLR(
        optimizer(), base_batch_size=8, batch_sizes=SIZES, first_batch=lambda: first[0]
    )
    first[0] = 2
    schedule.step(0)
    assert schedule.get_lr() == [0.5]
    schedule.step(1)
    assert schedule.get_lr() == [2.0]


def test_sizes_may_change_between_epochs():
    sizes = [[8, 16]]
    target = optimizer()
    schedule = VariableBatchLR(target, base_batch_size=8, batch_sizes=lambda: sizes[0])
    rates(target, schedule, 2)
    sizes[0] = [24]
    schedule.step(0)
    assert target.param_groups[0]["lr"] == 3.0


@pytest.mark.parametrize(("base", "method"), [(0, "linear"), (8, "cubic")])
def test_a_bad_base_or_method_is_refused(base, method):
    with pytest.raises(RuleError):
        VariableBatchLR(optimizer(), base_batch_size=base, batch_sizes=SIZES, method=method)
    with pytest.raises(RuleError):
        scale_lr(base, 8, 1.0, method)
