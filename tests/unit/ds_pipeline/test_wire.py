"""Any nested value survives the way between stages."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_pipeline.errors import PipelineError
from ds_pipeline.wire import EMPTY, WORD, Layout, get_word, tensors_of

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8]
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3)


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype = draw(st.sampled_from([*DTYPES, torch.bool]))
    value = torch.randint(0, 2, shape).to(dtype)
    return value.requires_grad_(dtype.is_floating_point and draw(st.booleans()))


values = st.recursive(
    plain | tensors(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=2) | st.integers(), inner, max_size=2)
    ),
    max_leaves=8,
)


def same(left, right):
    if torch.is_tensor(left):
        return left.dtype == right.dtype and left.shape == right.shape and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


@settings(deadline=None)
@given(values)
def test_what_is_unpacked_is_what_was_packed(value):
    layout, found = Layout.of(value)
    message = layout.message(torch.device("cpu")).fill(found)
    arrived = Layout.decode(layout.encode())
    assert arrived == layout
    assert get_word(message) == 0
    assert same(value, arrived.value(arrived.views(message)))
    assert [facts[2] for facts in arrived.tensors] == [t.requires_grad for t in tensors_of(value)]


def test_tensors_lie_aligned():
    layout, _ = Layout.of((torch.ones(3), torch.ones(5, dtype=torch.int8), torch.ones(2)))
    assert [offset % 64 for offset in layout.offsets] == [0, 0, 0]


def test_tensors_that_are_not_contiguous_are_packed_in_their_order():
    value = torch.arange(6.0).view(2, 3).t()
    layout, found = Layout.of(value)
    assert torch.equal(layout.views(layout.message(torch.device("cpu")).fill(found))[0], value)


def test_a_change_of_a_number_is_a_change_of_the_layout():
    assert Layout.of((torch.ones(2), 1))[0] != Layout.of((torch.ones(2), 2))[0]
    assert Layout.of((torch.ones(2), 1))[0] == Layout.of((torch.zeros(2), 1))[0]
    assert Layout.of((torch.ones(2), 1))[0] != Layout.of((torch.ones(2), True))[0]
    assert EMPTY.size == WORD


def test_what_cannot_travel_is_named():
    with pytest.raises(PipelineError, match="a set cannot pass between stages"):
        Layout.of((torch.ones(2), {1}))


def test_a_layout_that_has_not_changed_is_the_same_object():
    before, _ = Layout.of((torch.ones(2), 1))
    assert Layout.of((torch.zeros(2), 1), before)[0] is before
    assert Layout.of((torch.zeros(3), 1), before)[0] is not before
