"""Layers are divided as evenly as can be."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_pipeline.errors import PartitionError
from ds_pipeline.partition import balanced, explicit, matches, uniform


def loads(weights, bounds):
    return [sum(weights[a:b]) for a, b in pairwise(bounds)]


def best_maximum(weights, parts):
    cuts = combinations(range(1, len(weights)), parts - 1)
    return min(max(loads(weights, [0, *cut, len(weights)])) for cut in cuts)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=9), st.data())
def test_the_heaviest_stage_is_as_light_as_possible(weights, data):
    parts = data.draw(st.integers(1, len(weights)))
    bounds = balanced(weights, parts)
    assert bounds[0] == 0
    assert bounds[-1] == len(weights)
    assert all(a < b for a, b in pairwise(bounds))
    assert max(loads(weights, bounds)) == best_maximum(weights, parts)


def test_five_equal_layers_fill_four_stages():
    assert sorted(loads([1] * 5, balanced([1] * 5, 4))) == [1, 1, 1, 2]


def test_equal_blocks_among_weightless_layers_spread_over_16_stages():
    weights = [0] * 3 + [1] * 42 + [0] * 4
    found = loads(weights, balanced(weights, 16))
    assert max(found) == 3
    assert min(found) >= 2


def test_zeros_at_both_ends_leave_no_stage_empty():
    bounds = balanced([0, 0, 5, 5, 0, 0], 4)
    assert all(a < b for a, b in pairwise(bounds))


def test_layers_without_any_weight_are_spread_by_number():
    assert balanced([0] * 8, 4) == [0, 2, 4, 6, 8]


def test_uniform_differs_by_at_most_one():
    assert uniform(7, 3) == [0, 3, 5, 7]


def test_given_bounds_are_obeyed_even_if_a_stage_is_empty():
    assert explicit([0, 3, 3, 4], 4, 3) == [0, 3, 3, 4]


@pytest.mark.parametrize("bounds", [[0, 2], [1, 2, 4], [0, 3, 2, 4], [0, 2, 5, 4], [0, 1, 2, 3, 4]])
def test_bounds_that_do_not_fit_are_refused(bounds):
    with pytest.raises(PartitionError, match="rise from 0 to 4"):
        explicit(bounds, 4, 3)


def test_more_stages_than_layers_are_refused():
    with pytest.raises(PartitionError, match="2 layers cannot fill 3 stages"):
        balanced([1, 1], 3)


def test_types_are_found_in_any_case_and_missing_ones_named():
    assert matches(["Embedding", "Block", "block", "Head"], "BLOCK") == [0, 1, 1, 0]
    with pytest.raises(PartitionError, match="matches none of the layers: Block, Head"):
        matches(["Block", "Head"], "transformer")


def test_bad_weights_are_refused():
    with pytest.raises(PartitionError, match="not negative"):
        balanced([1, -1], 2)
