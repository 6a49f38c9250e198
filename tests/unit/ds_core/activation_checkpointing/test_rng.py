"""Named random states."""

from __future__ import annotations

import pytest
import torch

from ds_core.activation_checkpointing import MODEL_PARALLEL, RNGTracker
from ds_core.errors import ConfigError, StateError


def test_a_fork_has_its_own_stream_and_leaves_the_other_alone():
    tracker = RNGTracker("cpu")
    torch.manual_seed(1)
    tracker.add("a", 11)
    plain = torch.rand(2)
    with tracker.fork("a"):
        first = torch.rand(2)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(2), plain)
    with tracker.fork("a"):
        second = torch.rand(2)
    torch.manual_seed(11)
    assert torch.equal(torch.rand(4), torch.cat((first, second)))


def test_model_parallel_ranks_share_the_plain_stream_only():
    drawn = []
    for rank in (0, 1):
        tracker = RNGTracker("cpu")
        tracker.seed_model_parallel(5, rank)
        plain = torch.rand(1).item()
        with tracker.fork():
            drawn.append((plain, torch.rand(1).item()))
    assert drawn[0][0] == drawn[1][0]
    assert drawn[0][1] != drawn[1][1]


def test_an_error_inside_of_a_fork_restores_the_plain_stream():
    tracker = RNGTracker("cpu")
    tracker.add("a", 1)
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError), tracker.fork("a"):
        torch.rand(1) @ torch.rand(2)
    assert torch.equal(torch.get_rng_state(), before)


def test_states_can_be_taken_and_put_back():
    tracker = RNGTracker("cpu")
    tracker.add("a", 1)
    kept = tracker.get_states()
    with tracker.fork("a"):
        first = torch.rand(2)
    tracker.set_states(kept)
    with tracker.fork("a"):
        assert torch.equal(torch.rand(2), first)


def test_the_same_seed_or_name_twice_is_refused():
    tracker = RNGTracker("cpu")
    tracker.add("a", 1)
    with pytest.raises(ConfigError, match="seed 1 is in use"):
        tracker.add("b", 1)
    with pytest.raises(ConfigError, match="'a' already"):
        tracker.add("a", 2)
    tracker.reset()
    tracker.add("a", 1)


def test_an_unknown_name_is_answered_with_those_there():
    tracker = RNGTracker("cpu")
    tracker.add("mine", 1)
    with pytest.raises(StateError, match=rf"no random state '{MODEL_PARALLEL}' \(there are: mine"):
        tracker.fork().__enter__()
