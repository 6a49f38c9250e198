"""Client state comes back as it was, and what cannot is refused by its path."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import datetime
import enum
import json
import math
import pathlib
import random
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ds_core.checkpoint import open_checkpoint, save
from ds_core.checkpoint.documents import Encoder, decode, to_bytes
from ds_core.errors import CheckpointError, ConfigError


def round_trip(value):
    encoder = Encoder()
    text = to_bytes(encoder.encode(value, "client_state"))
    return decode(json.loads(text), lambda key, dtype, shape: encoder.tensors[key].view(shape))


class Color(enum.IntEnum):
    RED = 1


class Word(str, enum.Enum):
    A = "a"


@dataclasses.dataclass
class Point:
    x: int = 1


def label(value):
    """The same for every process: no addresses."""
    return re.sub(" at 0x.*", "", repr(value))[:40]


Pair = collections.namedtuple("Pair", "a b")

PLAIN = [
    *(None, True, 0, -1, 2**70, 1.5, -0.0, 1e-320, "", "ü\ud800", "$"),
    *([], {}, (), set(), frozenset({1}), (1, [2, (3,)]), {"$": 1}, {"$": "tuple", "v": []}),
    *({1: "a", None: "b", (1, 2): "c", 1.5: "d", True and "t": 0}, {"a": {"b": (1,)}}),
    *(collections.OrderedDict([("b", 1), ("a", 2)]), collections.OrderedDict([(2, 1)])),
    *(argparse.Namespace(lr=0.1, sizes=(1, 2)), b"\x00\xff", bytearray(b"x"), range(1, 9, 2)),
    *(1 + 2j, complex(math.inf, 0), torch.float16, torch.Size([2, 3]), torch.device("cuda", 1)),
    *(pathlib.Path("a/b"), datetime.datetime(2026, 1, 2, 3, 4, 5, 6), datetime.date(2026, 1, 2)),
    *(datetime.timedelta(days=-1, microseconds=3), random.Random(0).getstate()),
]


@pytest.mark.parametrize("value", PLAIN, ids=label)
def test_plain_values_come_back_with_their_types(value):
    found = round_trip({"x": value})["x"]
    assert found == value
    assert type(found) is type(value)
    assert repr(found) == repr(value)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf"])
def test_floats_that_json_lacks_come_back(text):
    assert repr(round_trip([float(text)])[0]) == text


@pytest.mark.parametrize(
    "value", [np.float32(1.5), np.int8(-3), np.bool_(True), np.float64(np.nan), np.uint64(2**63)]
)
def test_numpy_scalars_keep_their_dtype(value):
    found = round_trip(value)
    assert type(found) is type(value)
    assert found.tobytes() == value.tobytes()


@pytest.mark.parametrize(
    "value",
    [
        *(np.arange(6.0).reshape(2, 3), np.arange(6)[::-2], np.array(3), np.zeros((0, 2))),
        *(np.arange(6, dtype=np.float16).reshape(2, 3).T, np.frombuffer(b"abc", np.uint8)),
    ],
    ids=str,
)
def test_numpy_arrays_come_back(value):
    found = round_trip(value)
    assert found.dtype == value.dtype
    np.testing.assert_array_equal(found, value)


@pytest.mark.parametrize(
    "value",
    [
        *(torch.ones(2, 3).t(), torch.tensor(1), torch.zeros(0), torch.arange(9)[::3]),
        *(
            torch.ones(2, dtype=torch.bfloat16),
            torch.tensor([1 + 2j]).conj(),
            torch.ones(1).isnan(),
        ),
    ],
    ids=str,
)
def test_tensors_come_back(value):
    found = round_trip({"deep": [value]})["deep"][0]
    assert found.dtype == value.dtype
    assert torch.equal(found, value.resolve_conj())


def test_tensors_survive_a_save_with_their_bits(tmp_path):
    state = {"rng": torch.get_rng_state(), "np": np.random.get_state(), "b": torch.ones(2).bool()}
    save(tmp_path, "a", shards=[], client_state=state)
    with open_checkpoint(tmp_path) as checkpoint:
        found = checkpoint.client_state()
    assert torch.equal(found["rng"], state["rng"])
    assert torch.equal(found["b"], state["b"])
    np.testing.assert_array_equal(found["np"][1], state["np"][1])
    np.random.set_state(found["np"])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Color.RED, r"Color.*keep its \.value"),
        (Word.A, r"Word.*keep its \.value"),
        (Point(), r"Point.*dataclasses\.asdict"),
        (Pair(1, 2), r"Pair.*tuple\(\.\.\.\)"),
        (collections.defaultdict(int), r"collections\.defaultdict.*dict\(\.\.\.\)"),
        (collections.Counter("a"), r"Counter.*dict\(\.\.\.\)"),
        (np.array(["a"], dtype=object), r"numpy\.ndarray.*tolist"),
        (np.array(["a"]), r"numpy\.ndarray.*tolist"),
        (np.str_("a"), r"numpy\.str_"),
        (np.longdouble(1), "longdouble|float128"),
        (torch.nn.Linear(1, 1), r"Linear.*state_dict"),
        (torch.ones(2).to_sparse(), "dense"),
        (lambda: None, "function.*plain values"),
        (torch.float32.__class__, r"builtins\.type"),
    ],
    ids=label,
)
def test_other_values_are_refused_by_path_type_and_remedy(tmp_path, value, message):
    with pytest.raises(ConfigError, match=rf"client_state\['a'\]\[1\]\.b is of type .*{message}"):
        save(tmp_path, "t", shards=[], client_state={"a": [0, argparse.Namespace(b=value)]})
    assert list(tmp_path.iterdir()) == []


def test_a_value_that_contains_itself_is_refused():
    loop = []
    loop.append(loop)
    with pytest.raises(ConfigError, match=r"client_state\[0\] contains itself"):
        round_trip(loop)


def test_one_value_in_two_places_is_no_loop():
    shared = [1]
    assert round_trip([shared, shared]) == [[1], [1]]


def test_a_refusal_on_one_rank_reaches_all(tmp_path, as_ranks):
    def write(comm):
        state = {"x": object()} if comm.rank else {}
        return save(tmp_path, "t", shards=[], rank_state=state, comm=comm)

    first, second = as_ranks(2, write)
    assert isinstance(first, ConfigError)
    assert "failed on rank 1" in str(first)
    assert "rank_state['x'] is of type builtins.object" in str(second)


def test_a_kind_from_the_future_is_named():
    with pytest.raises(CheckpointError, match="kind 'quaternion'"):
        decode({"$": "quaternion", "v": 1}, None)


trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.just("$"), inner)
    ),
    max_leaves=12,
)


@given(trees)
def test_any_tree_comes_back(tree):
    assert repr(round_trip(tree)) == repr(tree)
