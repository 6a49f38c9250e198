"""Which samples share a micro-batch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_data import BatchRules, RuleError, batch_by_seqlens, plan_batches
from ds_data.packing import ORDERS

lengths_list = st.lists(st.integers(1, 70), min_size=0, max_size=200)


@st.composite
def rules_of(draw, **fixed):
    options = {
        "max_tokens": draw(st.integers(1, 64)),
        "order": draw(st.sampled_from(ORDERS)),
        "count": draw(st.sampled_from(["padded", "unpadded"])),
        "max_batch_size": draw(st.none() | st.integers(1, 9)),
        "same_size": draw(st.booleans()),
        "same_length": draw(st.booleans()),
        "drop_last": draw(st.booleans()),
        "window": draw(st.integers(1, 50)),
        "seed": draw(st.integers(0, 3)),
    }
    return BatchRules(**(options | fixed))


def costs(plan, rules):
    return plan.tokens if rules.count == "unpadded" else plan.sizes * plan.longest


@settings(deadline=None, max_examples=200)
@given(lengths_list, rules_of(), st.integers(1, 7))
def test_every_sample_is_in_one_batch_or_reported(lengths, rules, micro_batches):
    plan = plan_batches(lengths, rules, micro_batches=micro_batches)
    left_out = [plan.skipped.too_long, plan.skipped.too_few, plan.skipped.last]
    everything = np.concatenate([plan.ids, *left_out])
    assert sorted(everything.tolist()) == list(range(len(lengths)))
    assert all(lengths[i] > rules.max_tokens for i in plan.skipped.too_long)
    assert len(plan.skipped.too_few) == 0


@settings(deadline=None, max_examples=200)
@given(lengths_list, rules_of(), st.integers(1, 7))
def test_no_micro_batch_is_above_its_budget_or_empty(lengths, rules, micro_batches):
    plan = plan_batches(lengths, rules, micro_batches=micro_batches)
    assert (costs(plan, rules) <= rules.max_tokens).all()
    assert (plan.sizes >= 1).all()
    assert (plan.sizes <= (rules.max_batch_size or len(lengths) or 1)).all()


@settings(deadline=None, max_examples=100)
@given(lengths_list, rules_of(), st.integers(1, 7))
def test_batches_have_equal_numbers_of_micro_batches(lengths, rules, micro_batches):
    plan = plan_batches(lengths, rules, micro_batches=micro_batches)
    assert len(plan.sizes) == len(plan) * micro_batches
    assert plan.batch_sizes.sum() == len(plan.ids)


@settings(deadline=None, max_examples=100)
@given(lengths_list, rules_of(same_size=True), st.integers(1, 7))
def test_same_size_groups_really_are(lengths, rules, micro_batches):
    plan = plan_batches(lengths, rules, micro_batches=micro_batches)
    table = plan.sizes.reshape(-1, micro_batches)
    assert (table == table[:, :1]).all()


@settings(deadline=None, max_examples=100)
@given(lengths_list, rules_of(same_length=True, count="padded"), st.integers(1, 7))
def test_same_length_groups_stay_within_the_budget_after_padding(lengths, rules, micro_batches):
    plan = plan_batches(lengths, rules, micro_batches=micro_batches)
    padded = plan.sizes.reshape(-1, micro_batches) * plan.batch_longest[:, None]
    assert (padded <= rules.max_tokens).all()


@settings(deadline=None, max_examples=100)
@given(lengths_list, rules_of(), st.integers(1, 7), st.integers(0, 3))
def test_plan_depends_on_seed_and_epoch_only(lengths, rules, micro_batches, epoch):
    plans = [
        plan_batches(lengths, rules, micro_batches=micro_batches, epoch=epoch) for _ in range(2)
    ]
    assert plans[0].ids.tolist() == plans[1].ids.tolist()
    assert plans[0].edges.tolist() == plans[1].edges.tolist()


@pytest.mark.parametrize("order", ["random", "bucketed", "best_fit"])
@pytest.mark.parametrize("count", ["padded", "unpadded"])
def test_epochs_differ_in_shuffled_orders(order, count):
    lengths = np.random.default_rng(0).integers(1, 30, 300)
    rules = BatchRules(max_tokens=64, order=order, count=count)
    first, second = (plan_batches(lengths, rules, epoch=epoch) for epoch in (0, 1))
    assert first.ids.tolist() != second.ids.tolist()


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("order", ORDERS)
def test_an_incomplete_end_is_dropped_or_split_by_rule(order, drop_last):
    lengths = [3] * 70  # packs of 10: seven packs, batches of four
    rules = BatchRules(max_tokens=30, order=order, drop_last=drop_last)
    plan = plan_batches(lengths, rules, micro_batches=4)
    assert len(plan) == (1 if drop_last else 2)
    assert len(plan.skipped.last) == (30 if drop_last else 0)


def test_a_small_micro_batch_is_left_out_and_reported():
    rules = BatchRules(max_tokens=30, min_batch_size=2)
    plan = plan_batches([30, 10, 10, 10, 25], rules)
    assert plan.micro_batch(0) == [1, 2, 3]
    assert sorted(plan.skipped.too_few.tolist()) == [0, 4]


def test_a_long_sample_is_named_where_it_is_an_error():
    rules = BatchRules(max_tokens=64, too_long="error")
    with pytest.raises(RuleError, match="sample 2 has length 500, the limit is 64"):
        plan_batches([5, 6, 500], rules)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"min_batch_size": 4, "max_batch_size": 3}, "no batch can satisfy both"),
        ({"order": "seqlens"}, "expected one of dataloader, seqlen"),
        ({"count": "both"}, "'padded' or 'unpadded'"),
    ],
)
def test_rules_that_cannot_hold_are_refused(options, message):
    with pytest.raises(RuleError, match=message):
        BatchRules(**({"max_tokens": 10} | options))


def test_a_length_of_zero_is_refused():
    with pytest.raises(RuleError, match="sample 1 has length 0"):
        plan_batches([3, 0], BatchRules(max_tokens=10))


def test_worked_numbers_of_the_document():
    short, long = [3] * 10, [7] * 4
    _, sizes, longest = batch_by_seqlens(short + long, 30)
    assert (sizes, longest) == ([10, 4], [3, 7])


def test_same_sizes_pack_fewer_samples_than_free_ones():
    """Global batch 16 against 12, as in the document's figure of four micro-batches."""
    lengths = [7, 7, 7, 7, 7, 7, 7, 7, 10, 10, 10, 5, 5, 5, 5, 5]
    free = batch_by_seqlens(lengths, 30, effective_batch_size=4)
    same = batch_by_seqlens(
        lengths, 30, effective_batch_size=4, required_microbatches_of_same_size=True
    )
    assert free[1] == [16]
    assert same[1][0] == 12
    assert {len(ids) for batch, ids in same[0] if batch == 0} == {3}


@pytest.mark.parametrize("order", ORDERS)
def test_rows_8_8_of_the_user_cases(order):
    lengths = [*np.random.default_rng(0).integers(1, 51, 400).tolist(), 500]
    rules = BatchRules(max_tokens=64, order=order)
    plan = plan_batches(lengths, rules, micro_batches=2 * 3)
    assert plan.skipped.too_long.tolist() == [400]
    assert (plan.sizes * plan.longest).max() <= 64
    assert len(plan.sizes) % 6 == 0


def log_normal(count):
    lengths = np.random.default_rng(1).lognormal(5.5, 1.0, count).astype(np.int64)
    return lengths.clip(1, 4096)


def test_best_fit_wastes_less_than_two_percent_packed():
    plan = plan_batches(
        log_normal(20_000), BatchRules(max_tokens=4096, order="best_fit", count="unpadded")
    )
    assert plan.tokens.sum() / (len(plan) * 4096) > 0.98


@pytest.mark.parametrize("order", ["best_fit", "bucketed"])
def test_length_aware_orders_pad_less_than_two_percent(order):
    plan = plan_batches(log_normal(20_000), BatchRules(max_tokens=4096, order=order))
    assert plan.useful_share() > 0.98


def test_token_weights_turn_a_plain_mean_into_a_token_mean():
    lengths = np.random.default_rng(0).integers(1, 30, 200)
    plan = plan_batches(lengths, BatchRules(max_tokens=64), micro_batches=4)
    loss_of_token = np.random.default_rng(1).random(len(plan.tokens))
    weighted = (loss_of_token * plan.token_weights()).reshape(-1, 4).mean(1)
    tokens = plan.tokens.reshape(-1, 4)
    expected = (loss_of_token.reshape(-1, 4) * tokens).sum(1) / tokens.sum(1)
    np.testing.assert_allclose(weighted, expected)
