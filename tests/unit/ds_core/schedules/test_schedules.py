"""Learning rate schedules: recorded values, edge cases, and the rules of all."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ds_core.errors import ConfigError
from ds_core.schedules import SCHEDULES, build_schedule, warmup_exp_decay_exp

RECORDED = json.loads((Path(__file__).parent / "recorded.json").read_text())
"""What deepspeed 0.19.6 sets after so many steps, taken by running it."""

NEEDED = {
    "WarmupDecayLR": {"total_num_steps": 20},
    "WarmupCosineLR": {"total_num_steps": 20},
    "OneCycle": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2, "cycle_first_step_size": 4},
    "WarmupExpDecayExp": {"total_num_steps": 20},
    "warmup_exp_decay_exp": {"total_num_steps": 20},
}


def adam(*lrs, **options):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": lr} for lr in lrs]
    return torch.optim.Adam(groups, **options)


def rates(optimizer):
    return [float(group["lr"]) for group in optimizer.param_groups]


def run(name, params, steps, lrs=(0.1, 0.02)):
    optimizer = adam(*lrs)
    schedule = build_schedule(name, optimizer, params)
    curve = [rates(optimizer)]
    for _ in range(steps):
        schedule.step()
        curve.append(rates(optimizer))
    return curve


@pytest.mark.parametrize("case", RECORDED, ids=lambda c: f"{c['schedule']}-{c['params']}"[:80])
def test_rates_and_momentum_equal_the_recorded_ones(case):
    optimizer = adam(*case["lrs"])
    schedule = build_schedule(case["schedule"], optimizer, case["params"])
    done = 0
    for row, step in enumerate(case["steps"]):
        for _ in range(step - done):
            schedule.step()
        done = step
        assert rates(optimizer) == pytest.approx(case["lr"][row], rel=1e-12, abs=1e-15), step
        if "betas" in case:
            betas = optimizer.param_groups[0]["betas"]
            assert betas == pytest.approx(case["betas"][row], rel=1e-12), step


@pytest.mark.parametrize("kind", ["log", "linear"])
@pytest.mark.parametrize("name", ["WarmupLR", "WarmupDecayLR", "WarmupCosineLR"])
def test_no_warmup_means_the_full_rate_at_once(name, kind):
    params = NEEDED.get(name, {}) | {"warmup_num_steps": 0, "warmup_type": kind}
    curve = run(name, params, 2)
    full = [0.001, 0.001] if name == "WarmupDecayLR" else [0.1, 0.02]
    assert curve[0] == full
    assert all(rate > 0 for rates in curve for rate in rates)


def test_no_warmup_means_the_full_rate_at_once_in_the_exponential_schedule():
    params = {"total_num_steps": 20, "warmup_proportion": 0.0, "decay_step": 10}
    assert run("WarmupExpDecayExp", params, 1)[0] == pytest.approx([0.1, 0.02])


def test_maximum_defaults_to_each_groups_own_rate():
    curve = run("WarmupLR", {"warmup_num_steps": 3}, 6, lrs=(5e-7, 2e-3))
    assert curve[-1] == [5e-7, 2e-3]


@given(
    name=st.sampled_from(sorted(SCHEDULES)),
    warmup=st.integers(0, 3),
    total=st.integers(0, 5),
    kind=st.sampled_from(["log", "linear"]),
    steps=st.integers(0, 12),
)
def test_rates_are_finite_for_any_small_number_of_steps(name, warmup, total, kind, steps):
    params = dict(NEEDED.get(name, {}))
    if "total_num_steps" in params:
        params["total_num_steps"] = total
    if name.startswith("Warmup") and "Exp" not in name:
        params |= {"warmup_num_steps": warmup, "warmup_type": kind}
    for row in run(name, params, steps):
        assert all(math.isfinite(rate) and rate >= 0 for rate in row)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_a_schedule_goes_on_where_it_was_saved(name):
    params = NEEDED.get(name, {})
    curve = run(name, params, 9)
    first = build_schedule(name, adam(0.1, 0.02), params)
    for _ in range(4):
        first.step()
    optimizer = adam(0.1, 0.02)
    second = build_schedule(name, optimizer, params)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert rates(optimizer) == pytest.approx(curve[4]) == second.get_last_lr()
    for step in range(5, 10):
        second.step()
        assert rates(optimizer) == pytest.approx(curve[step])


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_a_step_can_be_given(name):
    params = NEEDED.get(name, {})
    optimizer = adam(0.1, 0.02)
    schedule = build_schedule(name, optimizer, params)
    schedule.step(6)
    assert rates(optimizer) == pytest.approx(run(name, params, 7)[-1])
    assert schedule.state_dict() == {"last_batch_iteration": 6}


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_last_rates_are_known_before_the_first_step(name):
    optimizer = adam(0.1, 0.02)
    schedule = build_schedule(name, optimizer, NEEDED.get(name, {}))
    assert schedule.get_last_lr() == pytest.approx(rates(optimizer))
    schedule.get_last_lr().clear()
    assert len(schedule.get_last_lr()) == 2


def test_a_schedule_begun_in_the_middle_leaves_the_rates_alone():
    optimizer = adam(0.1, 0.02)
    schedule = build_schedule("WarmupLR", optimizer, {"last_batch_iteration": 5})
    assert rates(optimizer) == schedule.get_last_lr() == [0.1, 0.02]


def test_a_rate_in_a_tensor_is_filled_in_place():
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))], lr=torch.tensor(0.5))
    held = optimizer.param_groups[0]["lr"]
    schedule = build_schedule("WarmupLR", optimizer, {"warmup_num_steps": 2})
    for _ in range(3):
        schedule.step()
    assert optimizer.param_groups[0]["lr"] is held
    assert held.item() == 0.5


def test_one_cycle_leaves_an_optimizer_without_betas_alone():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.5)
    schedule = build_schedule("OneCycle", optimizer, NEEDED["OneCycle"])
    schedule.step()
    assert schedule.get_mom() is None
    assert optimizer.param_groups[0]["momentum"] == 0.5


def test_momentum_stays_below_one_after_the_cycle():
    params = NEEDED["OneCycle"] | {"decay_step_size": 1, "decay_mom_rate": 1.0}
    optimizer = adam(0.1)
    schedule = build_schedule("OneCycle", optimizer, params)
    for _ in range(50):
        schedule.step()
    assert optimizer.param_groups[0]["betas"][0] < 1


def test_exponential_schedule_follows_its_formula():
    curve = run("WarmupExpDecayExp", {"total_num_steps": 100, "warmup_proportion": 0.1}, 60)
    factors = [warmup_exp_decay_exp(step, 0.9, 250, 100, 0.1) for step in range(61)]
    assert [row[0] for row in curve] == pytest.approx([0.1 * factor for factor in factors])
    assert factors[5] == pytest.approx(0.25)
    assert factors[10] == 1.0
    assert warmup_exp_decay_exp(260, 0.9, 250, 100, 0.1) == pytest.approx(0.9)


def test_a_plain_torch_loop_needs_nothing_else():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = build_schedule("WarmupLR", optimizer, {"warmup_num_steps": 4})
    for _ in range(6):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        schedule.step()
    assert schedule.get_last_lr() == [1e-2]


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("WarmUpLR", {}, r"scheduler\.type: unknown schedule 'WarmUpLR', did you mean 'WarmupLR'"),
        ("WarmupLR", {"warmup_steps": 1}, r"params\.warmup_steps: .*mean 'warmup_num_steps'"),
        ("WarmupDecayLR", {}, r"params\.total_num_steps: WarmupDecayLR needs it"),
        ("OneCycle", {"x": 1}, r"params\.x: .*; .*cycle_min_lr.*; .*cycle_max_lr"),
        ("WarmupLR", {"warmup_num_steps": 2.5}, "warmup_num_steps is 2.5: give a whole number"),
        ("WarmupLR", {"warmup_num_steps": -1}, "of at least 0"),
        ("WarmupLR", {"warmup_num_steps": True}, "is True"),
        ("WarmupLR", {"warmup_type": "cubic"}, "warmup_type is 'cubic': choose 'log' or 'linear'"),
        ("WarmupLR", {"warmup_max_lr": [0.1]}, "has 1 values for 2 parameter groups"),
        ("WarmupLR", {"warmup_max_lr": "auto"}, "warmup_max_lr is 'auto': give a number"),
        ("LRRangeTest", {"lr_range_test_step_size": 0}, "lr_range_test_step_size is 0"),
        ("OneCycle", NEEDED["OneCycle"] | {"cycle_first_step_size": 0}, "cycle_first_step_size"),
        ("WarmupExpDecayExp", {"total_num_steps": 9, "decay_rate": 0.0}, "decay_rate is 0.0"),
        ("WarmupExpDecayExp", {"total_num_steps": 9, "warmup_proportion": 2}, "give 0 to 1"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(name, params, message):
    with pytest.raises(ConfigError, match=message):
        build_schedule(name, adam(0.1, 0.02), params)


def test_whole_floats_are_taken_as_step_counts():
    schedule = build_schedule("WarmupLR", adam(0.1), {"warmup_num_steps": 1e2})
    assert schedule.warmup_num_steps == 100
