"""Training ends and decays by tokens, whatever the length of sequences."""

import pytest
import torch

from ds_data import RuleError, TokenBudget, TokenDecayLR, warmup_steps


def optimizer(lr=1.0):
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=lr)


def test_training_ends_when_the_tokens_are_spent():
    budget = TokenBudget(100)
    assert [budget.add(40) for _ in range(3)] == [False, False, True]
    other = TokenBudget(100)
    other.load_state_dict(budget.state_dict())
    assert other.done


def run(schedule, tokens):
    rates = []
    for number in tokens:
        rates.append(schedule.get_last_lr()[0])
        schedule.step(number)
    return rates


def test_warm_up_counts_steps():
    schedule = TokenDecayLR(optimizer(), decay_tokens=1000, warmup=4)
    assert run(schedule, [7, 1, 90, 2, 0])[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


def test_decay_counts_tokens():
    short = TokenDecayLR(optimizer(), decay_tokens=100, style="linear", lowest=0.1)
    long = TokenDecayLR(optimizer(), decay_tokens=100, style="linear", lowest=0.1)
    few, many = run(short, [10] * 11), run(long, [50] * 3)
    assert few[10] == many[2] == pytest.approx(0.1)
    assert few[5] == many[1] == pytest.approx(0.55)


def test_cosine_is_half_way_down_at_half_the_tokens():
    schedule = TokenDecayLR(optimizer(2.0), decay_tokens=100)
    schedule.step(50)
    assert schedule.get_last_lr()[0] == pytest.approx(1.0)


def test_resume_gives_the_same_rates():
    first = TokenDecayLR(optimizer(), decay_tokens=100, warmup=2)
    run(first, [3, 4, 5])
    second = TokenDecayLR(optimizer(), decay_tokens=100, warmup=2)
    second.load_state_dict(first.state_dict())
    assert run(second, [20] * 5) == run(first, [20] * 5)


def test_warm_up_steps_follow_the_first_length():
    """X / (min_difficulty * global batch size), rounded up."""
    assert warmup_steps(375_000_000, min_difficulty=64, global_batch_size=512) == 11445


@pytest.mark.parametrize("options", [{"decay_tokens": 0}, {"warmup": -1}, {"style": "step"}])
def test_wrong_settings_are_refused(options):
    with pytest.raises(RuleError, match="at least"):
        TokenDecayLR(optimizer(), **({"decay_tokens": 5} | options))
