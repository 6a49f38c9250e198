"""The process groups of a pipeline: along stages, replicas and pieces of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist

from ds_core.errors import ConfigError
from ds_pipeline.topology import PipeDataParallelTopology, ProcessTopology

Group = Any  # a ProcessGroup, or None where torch.distributed is not initialised


class PipelineParallelGrid:
    """A topology with its groups, which answers what a Megatron-style `mpu` answers.

    All ranks make it together. Without `torch.distributed` it is a grid of one, without groups.

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
            group: Group = None
            if dist.is_available() and dist.is_initialized():
                everyone = len(ranks) == self.world_size
                group = dist.group.WORLD if everyone else dist.new_group(list(ranks))
            if self.global_rank in ranks:
                mine, found = list(ranks), group
        return found, mine

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
