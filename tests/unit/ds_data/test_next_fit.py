"""Fast cutting equals the obvious loop."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_data.best_fit import best_fit
from ds_data.next_fit import _cut_runs, _cut_side_by_side, cut_padded, cut_unpadded


def obvious(lengths, budget, max_count, cost):
    edges = [0]
    for end in range(1, len(lengths) + 1):
        piece = lengths[edges[-1] : end]
        if cost(piece) > budget or len(piece) > max_count:
            edges.append(end - 1)
    return [*edges, len(lengths)] if lengths else [0]


def padded(piece):
    return len(piece) * max(piece)


cases = st.tuples(
    st.lists(st.integers(1, 30), min_size=1, max_size=300), st.integers(30, 200), st.integers(1, 40)
)


@settings(deadline=None)
@given(cases)
def test_unpadded_cuts_equal_the_loop(case):
    lengths, budget, most = case
    assert cut_unpadded(np.array(lengths), budget, most).tolist() == obvious(*case, sum)


@settings(deadline=None)
@given(cases)
def test_padded_cuts_equal_the_loop(case):
    lengths, budget, most = case
    wanted = obvious(*case, padded)
    array = np.array(lengths)
    runs = np.concatenate(([0], np.flatnonzero(np.diff(array)) + 1, [len(array)]))
    assert cut_padded(array, budget, most).tolist() == wanted
    assert _cut_runs(array, runs, budget, most).tolist() == wanted
    assert _cut_side_by_side(array, budget, most).tolist() == wanted


@pytest.mark.parametrize("kind", ["random", "sorted", "equal", "two values"])
@pytest.mark.parametrize("most", [7, 10_000])
def test_long_inputs_equal_the_loop(kind, most):
    random = np.random.default_rng(0)
    lengths = random.lognormal(4, 1, 20_000).astype(np.int64).clip(1, 4096)
    lengths = {
        "random": lengths,
        "sorted": np.sort(lengths),
        "equal": np.full(20_000, 37),
        "two values": random.integers(0, 2, 20_000) * 100 + 5,
    }[kind]
    wanted = obvious_padded_fast(lengths.tolist(), 4096, most)
    assert cut_padded(lengths, 4096, most).tolist() == wanted


def obvious_padded_fast(lengths, budget, most):
    edges, widest = [0], 0
    for index, length in enumerate(lengths):
        count, widest = index + 1 - edges[-1], max(widest, length)
        if count * widest > budget or count > most:
            edges.append(index)
            widest = length
    return [*edges, len(lengths)]


def test_no_samples_make_no_packs():
    assert cut_padded(np.zeros(0, np.int64), 5, 1).tolist() == [0]
    assert cut_unpadded(np.zeros(0, np.int64), 5, 1).tolist() == [0]


@settings(deadline=None)
@given(cases)
def test_best_fit_bins_equal_item_by_item_placement(case):
    lengths, budget, most = case
    sizes = np.array(lengths)
    order = np.argsort(-sizes, kind="stable")
    bin_of = best_fit(sizes, order, budget, most)
    rooms = []
    for size in sizes[order].tolist():
        fitting = [room for room in rooms if room[0] >= size and room[1] < most]
        room = min(fitting, default=None)
        if room is None:
            rooms.append([budget - size, 1])
        else:
            room[0], room[1] = room[0] - size, room[1] + 1
    filled = np.bincount(bin_of, weights=sizes[order])
    assert len(filled) == len(rooms)
    assert sorted(budget - filled) == sorted(room[0] for room in rooms)
    assert np.bincount(bin_of).max() <= most


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_budget_without_an_end_is_no_budget(lanes):
    edges = cut_unpadded(np.full(8 * lanes, 5), 2**63 - 1, 3, lanes=lanes)
    assert edges.tolist() == [0, 3, 6, 8]
