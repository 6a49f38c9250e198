"""The process groups of a pipeline: along stages, replicas and pieces of layers."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ds_core.errors import ConfigError
from ds_pipeline.topology import PipeDataParallelTopology, ProcessTopology

Group = Any  # a ProcessGroup, or None where torch.distributed is not initialised


class PipelineParallelGrid:
    """A topology with its groups, which answers what a Megatron-style `mpu` answers.

    All ranks make it together. Without `torch.distributed` it is a grid of one, without groups.
    Its groups go with it when nobody holds it any more (gloo), or at `close()`.

    Args:
        topology: axes `pipe`, `data` and perhaps `model`; None makes every rank a stage.
        process_group: must be the world; there for the order of arguments.
    """

    def __init__(
        self, topology: ProcessTopology | None = None, process_group: Group = None
    ) -> None:
        live = dist.is_available() and dist.is_initialized()
        self.global_rank = dist.get_rank() if live else 0
        self.world_size = dist.get_world_size() if live else 1
        self._topology = topology or PipeDataParallelTopology(self.world_size, 1)
        if self._topology.world_size() != self.world_size:
            raise ConfigError(
                f"the topology {dict(self._sizes())} has {self._topology.world_size()} ranks, "
                f"torch.distributed has {self.world_size}"
            )
        self._groups: dict[tuple[int, ...], Group] = {}
        weakref.finalize(self, _release_gloo, self._groups, os.getpid()).atexit = False
        coord = self._topology.get_coord(self.global_rank)
        self.stage_id: int = getattr(coord, "pipe", 0)
        self.data_parallel_id: int = getattr(coord, "data", 0)
        self.slice_id: int = getattr(coord, "model", 0)
        self.pipe_parallel_size = max(1, self._topology.get_dim("pipe"))
        self.data_parallel_size = max(1, self._topology.get_dim("data"))
        self.slice_parallel_size = max(1, self._topology.get_dim("model"))
        self.pp_group, self._pp = self._along("pipe", live)
        self.dp_group, self.dp_ranks = self._along("data", live)
        self.slice_group, self._slice = self._along("model", live)
        replicas = [
            self._topology.filter_match(data=index) for index in range(self.data_parallel_size)
        ]
        if "data" not in self._topology.get_axis_names():
            replicas = [list(range(self.world_size))]
        self.model_group, self._model = self.make_group(replicas)

    def _sizes(self) -> Sequence[tuple[str, int]]:
        return [(axis, self._topology.get_dim(axis)) for axis in self._topology.get_axis_names()]

    def _along(self, axis: str, live: bool) -> tuple[Group, list[int]]:
        lists = self._topology.get_axis_comm_lists(axis)
        return self.make_group(lists or [[rank] for rank in range(self.world_size)])

    def make_group(self, lists: Sequence[Sequence[int]]) -> tuple[Group, list[int]]:
        """This rank's group among `lists` and its ranks; all ranks make all of them together."""
        mine: list[int] = []
        found: Group = None
        for ranks in lists:
            group = self._group(tuple(ranks))
            if self.global_rank in ranks:
                mine, found = list(ranks), group
        return found, mine

    def new_pipe_group(self) -> Group:
        """Another group of this rank's stages, for one user, who calls `release` at the end.

        All ranks call this together.
        """
        found: Group = None
        for ranks in self._topology.get_axis_comm_lists("pipe"):
            group = _new_group(ranks)
            if self.global_rank in ranks:
                found = group
        return found

    def close(self) -> None:
        """Close the groups, after the last engine over them; all ranks call this together."""
        for group in self._groups.values():
            release(group)
        self._groups.clear()

    def _group(self, ranks: tuple[int, ...]) -> Group:
        """The group of `ranks`, made once; each costs threads and file descriptors."""
        if len(ranks) == self.world_size:
            return dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
        if ranks not in self._groups:
            self._groups[ranks] = _new_group(ranks)
        return self._groups[ranks]

    def topology(self) -> ProcessTopology:
        return self._topology

    def stage_to_global(self, stage_id: int, **kwargs: int) -> int:
        """The rank that has `stage_id` in this rank's place of the other axes."""
        coord = self._topology.get_coord(self.global_rank)._asdict() | {"pipe": stage_id} | kwargs
        return self._topology.get_rank(**coord)

    def get_global_rank(self) -> int:
        return self.global_rank

    def get_stage_id(self) -> int:
        return self.stage_id

    def get_data_parallel_id(self) -> int:
        return self.data_parallel_id

    def get_pipe_parallel_rank(self) -> int:
        return self.stage_id

    def get_pipe_parallel_world_size(self) -> int:
        return self.pipe_parallel_size

    def get_pipe_parallel_group(self) -> Group:
        return self.pp_group

    def get_data_parallel_rank(self) -> int:
        return self.data_parallel_id

    def get_data_parallel_world_size(self) -> int:
        return self.data_parallel_size

    def get_data_parallel_group(self) -> Any:
        return self.dp_group

    def get_data_parallel_group_ranks(self) -> list[int]:
        return self.dp_ranks

    def get_model_parallel_rank(self) -> int:
        """The place among the ranks that hold one replica: stages and pieces of layers."""
        return self._model.index(self.global_rank)

    def get_model_parallel_world_size(self) -> int:
        return len(self._model)

    def get_model_parallel_group(self) -> Any:
        """The ranks that hold one replica together."""
        return self.model_group

    def get_slice_parallel_rank(self) -> int:
        return self.slice_id

    def get_slice_parallel_world_size(self) -> int:
        return self.slice_parallel_size

    def get_slice_parallel_group(self) -> Group:
        """The ranks that hold the pieces of one layer."""
        return self.slice_group

    get_tensor_model_parallel_rank = get_slice_parallel_rank
    get_tensor_model_parallel_world_size = get_slice_parallel_world_size
    get_tensor_model_parallel_group = get_slice_parallel_group
    get_pipeline_model_parallel_rank = get_pipe_parallel_rank
    get_pipeline_model_parallel_world_size = get_pipe_parallel_world_size
    get_pipeline_model_parallel_group = get_pipe_parallel_group


def release(group: Group) -> None:
    """Close a group's connections; whoever still waits at the other end is told at once."""
    if group is None or not dist.is_initialized():
        return
    with contextlib.suppress(ValueError):  # gone with the world in which it was made
        dist.destroy_process_group(group)


def is_gloo(group: Group) -> bool:
    """Whether one rank may close a group whatever the others do."""
    return group is not None and isinstance(group, dist.ProcessGroup) and group.name() == "gloo"


def _new_group(ranks: Iterable[int]) -> Group:
    """A group that waits as long as the world does; the default would be half an hour."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    return dist.new_group(list(ranks), timeout=patience_of(dist.group.WORLD))


def patience_of(group: Group) -> timedelta | None:
    """How long the members of a group wait for each other, where its backend tells."""
    for device in ("cpu", "cuda", "xpu"):
        with contextlib.suppress(RuntimeError, AttributeError):
            found = group._get_backend(torch.device(device)).options._timeout
            return found if isinstance(found, timedelta) else None
    return None


def _release_gloo(groups: dict[tuple[int, ...], Group], process: int) -> None:
    if os.getpid() != process:  # a forked child has none of their threads, and would wait for them
        return
    for group in groups.values():
        if is_gloo(group):
            release(group)
