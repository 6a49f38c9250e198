"""Hostfiles and the filters over them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepspeed.launcher import hosts
from deepspeed.launcher.errors import LaunchError

POOL = {"w0": [0, 1, 2, 3], "w1": [0, 1]}


def test_reads_comments_blank_lines_users_and_addresses():
    text = """
    # the cluster
    w0 slots=4   # fast
    ann@w1.example slots = 2 max_slots=8
    10.0.0.3 slots=1

    [fe80::1] slots=8
    ann@::1 slots=2
    """
    assert hosts.parse_hostfile(text) == {
        **{"w0": 4, "ann@w1.example": 2, "10.0.0.3": 1},
        **{"[fe80::1]": 8, "ann@::1": 2},
    }


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("w1 lots=8", "expected 'HOST slots=N'"),
        ("w1", "expected 'HOST slots=N'"),
        ("w1 slots=0", "at least 1, not '0'"),
        ("w1 slots=-2", "at least 1, not '-2'"),
        ("w1 slots=four", "not 'four'"),
        ("w1 slots=4 gpus=2", "unexpected 'gpus=2'"),
        ("w0 slots=4", "host 'w0' stands in line 1 already"),
        ("w1;reboot slots=4", "not a host name or address"),
        ("1:2:x slots=4", "not a host name or address"),
    ],
)
def test_bad_line_is_shown_with_number_and_reason(line, reason):
    with pytest.raises(LaunchError) as caught:
        hosts.parse_hostfile(f"w0 slots=4\n\n{line}\n", name="/here/hosts")
    message = str(caught.value)
    assert "hostfile /here/hosts: line 3: " in message
    assert repr(line) in message
    assert reason in message


def test_all_bad_lines_are_shown_at_once():
    with pytest.raises(LaunchError, match=r"(?s)line 1: .*line 3: "):
        hosts.parse_hostfile("a\nb slots=1\nc slots=x\n")


def test_empty_hostfile_is_refused():
    with pytest.raises(LaunchError, match="names no host"):
        hosts.parse_hostfile("# nothing\n")


def test_missing_hostfile_is_an_error_only_when_asked_for(tmp_path):
    assert hosts.read_hostfile(tmp_path / "none", required=False) is None
    with pytest.raises(LaunchError, match="none: no such file"):
        hosts.read_hostfile(tmp_path / "none", required=True)


@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [
        ({}, POOL),
        ({"include": "w1"}, {"w1": [0, 1]}),
        ({"include": "w1:1@w0:0,2-3"}, {"w0": [0, 2, 3], "w1": [1]}),
        ({"include": "w0:1@w0:0"}, {"w0": [0, 1]}),
        ({"exclude": "w0"}, {"w1": [0, 1]}),
        ({"exclude": "w0:0,1@w1:0-1"}, {"w0": [2, 3]}),
        ({"num_nodes": 1}, {"w0": [0, 1, 2, 3]}),
        ({"num_gpus": 2}, {"w0": [0, 1], "w1": [0, 1]}),
        ({"num_nodes": 1, "num_gpus": 3}, {"w0": [0, 1, 2]}),
    ],
)
def test_filters_pick_slots_in_the_order_of_the_hostfile(arguments, chosen):
    selected = hosts.select(POOL, **arguments)
    assert selected == chosen
    assert list(selected) == list(chosen)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"include": "w0", "exclude": "w1"}, "--include and --exclude"),
        ({"include": "w0", "num_gpus": 1}, "--num_gpus"),
        ({"include": "w9"}, "no host 'w9' among w0, w1"),
        ({"include": "w1:2"}, "w1 has no slot 2, only 0-1"),
        ({"exclude": "w1:a"}, "slots are numbers"),
        ({"include": "w1:1-0"}, "expected a list"),
        ({"include": "w1@"}, "no host ''"),
        ({"exclude": "w0@w1"}, "nothing is left"),
        ({"num_nodes": 3}, "only 2 hosts"),
        ({"num_gpus": 3}, "w1 has only 2 slots"),
    ],
)
def test_filters_refuse_what_is_not_there(arguments, message):
    with pytest.raises(LaunchError, match=message):
        hosts.select(POOL, **arguments)


def test_filters_know_users_and_ipv6_addresses():
    pool = {"ann@w0": [0, 1], "::1": [0, 1], "ann@::1": [0, 1]}
    include = "ann@w0:1@::1:0@ann@::1"
    assert hosts.select(pool, include=include) == {"ann@w0": [1], "::1": [0], "ann@::1": [0, 1]}


@given(st.sets(st.integers(0, 200), min_size=1))
def test_spans_and_numbers_are_inverse(slots):
    assert hosts.numbers(hosts.spans(sorted(slots)), what="x") == sorted(slots)
