"""Where each rank stands in a grid of named axes."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from itertools import product
from typing import Any

from ds_core.errors import ConfigError


class ProcessTopology:
    """Ranks in row-major order over `axes`: the last axis varies fastest.

    >>> grid = ProcessTopology(["pipe", "data"], [2, 2])
    >>> grid.get_rank(pipe=1, data=0), grid.get_axis_comm_lists("pipe")
    (2, [[0, 2], [1, 3]])
    """

    def __init__(self, axes: Sequence[str], dims: Sequence[int]) -> None:
        if len(axes) != len(dims) or len(set(axes)) != len(axes):
            raise ConfigError(f"axes {list(axes)} and sizes {list(dims)} do not fit together")
        if any(dim < 1 for dim in dims):
            raise ConfigError(f"sizes {list(dims)} of axes {list(axes)} must be at least 1")
        self.axes, self.dims = list(axes), list(dims)
        make: Any = namedtuple
        self.ProcessCoord = make("ProcessCoord", axes)  # Any: the fields are known at run time
        coords = product(*(range(dim) for dim in dims))
        self.mapping: dict[Any, int] = {
            self.ProcessCoord(*coord): rank for rank, coord in enumerate(coords)
        }
        self._coords = list(self.mapping)

    def get_rank(self, **coord_kwargs: int) -> int:
        """The rank at a coordinate, all axes given."""
        if set(coord_kwargs) != set(self.axes):
            raise ConfigError(f"get_rank needs all of {self.axes}, got {sorted(coord_kwargs)}")
        key = self.ProcessCoord(**coord_kwargs)
        if key not in self.mapping:
            raise ConfigError(f"{key} lies outside of a grid of sizes {self.dims}")
        return self.mapping[key]

    def get_coord(self, rank: int) -> Any:
        """The coordinate of a rank, a named tuple over the axes."""
        if not 0 <= rank < len(self._coords):
            raise ConfigError(f"rank {rank} lies outside of a grid of {len(self._coords)} ranks")
        return self._coords[rank]

    def get_axis_names(self) -> list[str]:
        """The axes, slowest first."""
        return self.axes

    def get_dim(self, axis: str) -> int:
        """Number of ranks along an axis; 0 if there is none of that name."""
        return self.dims[self.axes.index(axis)] if axis in self.axes else 0

    def get_rank_repr(
        self,
        rank: int,
        omit_axes: Sequence[str] = ("data", "pipe"),
        inner_sep: str = "_",
        outer_sep: str = "-",
    ) -> str:
        """A name such as `model_00` for what a rank holds."""
        coord = self.get_coord(rank)
        kept = [axis for axis in self.axes if axis not in set(omit_axes)]
        return outer_sep.join(f"{axis}{inner_sep}{getattr(coord, axis):02d}" for axis in kept)

    def get_axis_comm_lists(self, axis: str) -> list[list[int]]:
        """Groups of ranks that differ along `axis` only; none if there is no such axis."""
        if axis not in self.axes:
            return []
        others = [name for name in self.axes if name != axis]
        groups: dict[tuple[int, ...], list[int]] = {}
        for coord, rank in self.mapping.items():
            groups.setdefault(tuple(getattr(coord, name) for name in others), []).append(rank)
        return list(groups.values())

    def filter_match(self, **filter_kwargs: int) -> list[int]:
        """The ranks whose coordinates have these values."""
        return [
            rank
            for coord, rank in self.mapping.items()
            if all(getattr(coord, axis) == value for axis, value in filter_kwargs.items())
        ]

    def get_axis_list(self, axis: str, idx: int) -> list[int]:
        """The ranks at position `idx` of `axis`."""
        return self.filter_match(**{axis: idx})

    def world_size(self) -> int:
        """Number of ranks."""
        return len(self._coords)

    def __str__(self) -> str:
        return str(self.mapping)


class PipeDataParallelTopology(ProcessTopology):
    """Stages, each replicated: neighbouring ranks share a stage, so reductions stay close."""

    def __init__(self, num_pp: int, num_dp: int) -> None:
        super().__init__(["pipe", "data"], [num_pp, num_dp])


class PipeModelDataParallelTopology(ProcessTopology):
    """Stages, replicas and pieces of layers; the ranks of one layer are neighbours."""

    def __init__(self, num_pp: int, num_mp: int, num_dp: int) -> None:
        super().__init__(["pipe", "data", "model"], [num_pp, num_dp, num_mp])
