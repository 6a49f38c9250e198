"""Partitions of 64 ranks, proven in one process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_zero.plan import bucket_limit, buckets, cut, overlap, plan, plan_each, round_up, share

SIZES = st.lists(st.integers(0, 5000), max_size=12)
WORLDS = st.integers(1, 64)


@given(SIZES, WORLDS, st.sampled_from([1, 2, 16]))
def test_every_element_belongs_to_exactly_one_rank(sizes, world, align):
    owned = [0] * len(sizes)
    length = share(sum(sizes), world, align=align)
    ends = [0] * len(sizes)
    for rank in range(world):
        for piece in plan(sizes, rank, world, align=align):
            assert piece.start == ends[piece.index], f"rank {rank}: {piece}"
            assert piece.offset >= 0
            assert piece.offset + piece.length <= length
            ends[piece.index] = piece.start + piece.length
            owned[piece.index] += piece.length
    assert owned == list(sizes)


@given(SIZES, WORLDS)
def test_each_tensor_is_cut_alike_on_every_rank(sizes, world):
    owned = [0] * len(sizes)
    for rank in range(world):
        slices = plan_each(sizes, rank, world)
        assert [piece.index for piece in slices] == list(range(len(sizes)))
        for piece in slices:
            assert piece.length <= share(sizes[piece.index], world)
            assert piece.length == 0 or piece.start == rank * share(sizes[piece.index], world)
            owned[piece.index] += piece.length
    assert owned == list(sizes)


@given(SIZES, WORLDS, st.integers(1, 700))
def test_cutting_a_share_loses_nothing(sizes, world, step):
    slices = plan(sizes, world // 2, world)
    length = share(sum(sizes), world)
    parts = [p for begin in range(0, length, step) for p in cut(slices, begin, begin + step)]
    assert sum(p.length for p in parts) == sum(s.length for s in slices)


@given(SIZES, st.integers(1, 6000))
def test_buckets_keep_order_and_limit(sizes, limit):
    found = list(buckets(sizes, limit))
    assert [index for bucket in found for index in bucket] == list(range(len(sizes)))
    for bucket in found:
        assert len(bucket) == 1 or sum(sizes[index] for index in bucket) <= limit


def test_known_partition():
    assert [(s.index, s.start, s.length, s.offset) for s in plan([4, 3], 1, 2)] == [(1, 0, 3, 0)]
    assert overlap([], 0, 10) == ()
    assert round_up(5, 4) == 8


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_outside_of_the_group_is_refused(rank):
    with pytest.raises(ValueError, match=r"0\.\.1"):
        plan([1], rank, 2)


@pytest.mark.parametrize(
    ("setting", "total", "expected"),
    [(10, 10**9, 10), (10**9, 160, 1 << 21), (10**9, 1 << 30, 1 << 26)],
)
def test_a_bucket_is_no_larger_than_asked_or_useful(setting, total, expected):
    assert bucket_limit(setting, total) == expected
