"""Ranks on a grid."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_core.errors import ConfigError
from ds_pipeline.topology import (
    PipeDataParallelTopology,
    PipeModelDataParallelTopology,
    ProcessTopology,
)


@settings(deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_ranks_and_coordinates_are_inverse(dims):
    grid = ProcessTopology([f"axis{i}" for i in range(len(dims))], dims)
    for rank in range(grid.world_size()):
        assert grid.get_rank(**grid.get_coord(rank)._asdict()) == rank
    for axis in grid.get_axis_names():
        groups = grid.get_axis_comm_lists(axis)
        assert sorted(rank for group in groups for rank in group) == list(range(grid.world_size()))
        assert {len(group) for group in groups} == {grid.get_dim(axis)}


def test_replicas_of_a_stage_are_neighbours():
    grid = PipeDataParallelTopology(2, 3)
    assert grid.get_axis_list("pipe", 1) == [3, 4, 5]
    assert grid.get_axis_comm_lists("pipe") == [[0, 3], [1, 4], [2, 5]]


def test_pieces_of_a_layer_are_nearest():
    grid = PipeModelDataParallelTopology(num_pp=2, num_mp=2, num_dp=2)
    assert grid.get_axis_names() == ["pipe", "data", "model"]
    assert grid.get_axis_comm_lists("model") == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert grid.filter_match(pipe=1, data=0) == [4, 5]
    assert grid.get_rank_repr(5) == "model_01"
    assert grid.get_rank_repr(5, omit_axes=["pipe"], inner_sep=".", outer_sep="/") == (
        "data.00/model.01"
    )


def test_unknown_axes_are_empty():
    grid = PipeDataParallelTopology(2, 2)
    assert grid.get_dim("model") == 0
    assert grid.get_axis_comm_lists("model") == []


@pytest.mark.parametrize(
    "call",
    [
        lambda: ProcessTopology(["a", "a"], [1, 2]),
        lambda: ProcessTopology(["a"], [0]),
        lambda: PipeDataParallelTopology(2, 2).get_rank(pipe=0),
        lambda: PipeDataParallelTopology(2, 2).get_rank(pipe=2, data=0),
        lambda: PipeDataParallelTopology(2, 2).get_coord(4),
    ],
)
def test_places_outside_of_the_grid_are_refused(call):
    with pytest.raises(ConfigError):
        call()
