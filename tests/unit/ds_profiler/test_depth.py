"""Models that nest deeper than Python's recursion limit are profiled, shown and saved."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from ds_profiler import profile
from ds_profiler.report import chrome_trace, html_report, text_report, write_report
from ds_profiler.result import Profile

LEVELS = 400
"""Plain PyTorch calls such a chain as one of a loop, but not nested: at most 250 or so."""


class Chain(nn.Module):
    """Nested `levels` deep; calls itself so too, or in a loop."""

    def __init__(self, levels: int, *, nested: bool):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.inner = Chain(levels - 1, nested=nested) if levels > 1 else None
        self.nested = nested

    def forward(self, x):
        if self.nested:
            x = self.layer(x)
            return x if self.inner is None else self.inner(x)
        link = self
        while link is not None:
            x, link = link.layer(x), link.inner
        return x


@pytest.fixture(scope="module", params=[False, True], ids=["loop", "nested"])
def deep(request):
    return profile(Chain(LEVELS, nested=request.param), torch.ones(1, 2), warm_up=0)


def test_all_levels_are_counted(deep):
    assert (deep.macs, deep.params) == (4 * LEVELS, 6 * LEVELS)
    assert sum(1 for _ in deep.root.walk()) == 2 * LEVELS


def test_each_level_takes_as_many_calls_as_another():
    calls_of_profiling(5)  # what is done once
    few, more, most = (calls_of_profiling(levels) for levels in (100, 200, 400))
    assert most - more < 2.1 * (more - few)


def calls_of_profiling(levels):
    model, calls = Chain(levels, nested=False), 0

    def count(frame, event, arg):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        profile(model, torch.ones(1, 2), backward=True).to_json()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("show", [text_report, html_report, chrome_trace, Profile.to_dict])
def test_every_form_holds_all_levels(deep, show):
    assert str(show(deep)).count("inner") >= LEVELS - 1


def test_a_saved_profile_reads_back(deep, tmp_path):
    write_report(deep, tmp_path / "profile.json")
    assert sum(1 for _ in Profile.load(tmp_path / "profile.json").root.walk()) == 2 * LEVELS


def test_the_recursion_limit_is_as_before(deep):
    assert sys.getrecursionlimit() < 24 * LEVELS
