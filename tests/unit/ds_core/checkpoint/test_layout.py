"""Arithmetic of pieces, against a list of elements."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ds_core.checkpoint.layout import cover_fault, numel_of, overlaps

spans = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), max_size=8).map(sorted)


@given(spans, st.integers(0, 24))
def test_cover_is_found_faulty_exactly_when_counting_says_so(pieces, total):
    counts = [0] * 40
    for start, numel in pieces:
        for i in range(start, start + numel):
            counts[i] += 1
    right = counts == [1] * total + [0] * (40 - total)
    assert (cover_fault(pieces, total) is None) == right


@given(st.lists(st.integers(0, 5), min_size=1, max_size=9), st.data())
def test_overlaps_rebuild_any_range(sizes, data):
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    total = sum(sizes)
    start = data.draw(st.integers(0, total))
    numel = data.draw(st.integers(0, total - start))
    out = [None] * numel
    for part in overlaps(starts, sizes, start, numel):
        for i in range(part.numel):
            assert out[part.range_offset + i] is None
            out[part.range_offset + i] = starts[part.index] + part.piece_offset + i
    assert out == list(range(start, start + numel))


@pytest.mark.parametrize(("shape", "numel"), [((), 1), ((0,), 0), ((2, 3), 6), ((5, 0, 2), 0)])
def test_numel_of_a_shape(shape, numel):
    assert numel_of(shape) == numel
