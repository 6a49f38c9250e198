"""Functions like those of `torch.distributed`, which observers of collectives can tap."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup as ProcessGroup
from torch.distributed import ReduceOp as ReduceOp
from torch.distributed.device_mesh import init_device_mesh

from deepspeed.distributed import device_type, local_rank
from deepspeed.distributed import init_distributed as init_distributed
from deepspeed.legacy import fallback
from ds_core.comm import Taps
from ds_core.contracts import CommEvent

TAPS = Taps()
"""Observers of the collectives that a program calls through this module."""

_SENT_FIRST = {"all_gather": 1, "all_gather_into_tensor": 1, "reduce_scatter": 1}
_SENT_FIRST |= {"reduce_scatter_tensor": 1, "all_to_all_single": 1, "all_to_all": 1}


def is_available() -> bool:
    """True if this PyTorch was built with collectives."""
    return dist.is_available()


def is_initialized() -> bool:
    """True once the process group exists."""
    return dist.is_available() and dist.is_initialized()


def get_rank(group: ProcessGroup | None = None) -> int:
    """This process's rank; 0 before initialisation."""
    return dist.get_rank(group) if is_initialized() else 0


def get_world_size(group: ProcessGroup | None = None) -> int:
    """Number of ranks; 1 before initialisation."""
    return dist.get_world_size(group) if is_initialized() else 1


def get_local_rank() -> int:
    """This process's rank on its host."""
    return local_rank()


def get_global_rank(group: ProcessGroup | None = None, group_rank: int = 0) -> int:
    """The rank in the world of a rank in `group`."""
    return group_rank if group is None else dist.get_global_rank(group, group_rank)


def get_world_group() -> ProcessGroup | None:
    """The group of all ranks."""
    return dist.group.WORLD


def get_all_ranks_from_group(group: ProcessGroup | None = None) -> list[int]:
    """The ranks in the world of the members of `group`."""
    return dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)


def new_group(ranks: list[int] | None = None, **options: Any) -> ProcessGroup | None:
    """A group of these ranks; every rank of the world calls this."""
    group: ProcessGroup | None = dist.new_group(ranks, **options)
    return group


def destroy_process_group(group: ProcessGroup | None = None) -> None:
    """Close a group, or all of them."""
    dist.destroy_process_group(group)


def initialize_mesh_device(mesh_shape: tuple[int, ...], mesh_dim_names: tuple[str, ...]) -> Any:
    """A device mesh over all ranks."""
    return init_device_mesh(device_type(), mesh_shape, mesh_dim_names=mesh_dim_names)


def _observed(name: str) -> Callable[..., Any]:
    """`torch.distributed.<name>`, told to observers if there are any."""
    function = getattr(dist, name)
    position = _SENT_FIRST.get(name, 0)

    @functools.wraps(function)
    def call(
        *args: Any, log_name: str = "", prof: bool = False, debug: str = "", **kwargs: Any
    ) -> Any:
        if not TAPS.observers:
            return function(*args, **kwargs)
        start = time.perf_counter()
        work = function(*args, **kwargs)
        if work is not None and kwargs.get("async_op"):
            work.wait()  # an observed collective is timed to its end
        seconds = time.perf_counter() - start
        sent = args[position] if len(args) > position else None
        group = kwargs.get("group")
        event = CommEvent(
            op=name,
            nbytes=_bytes(sent),
            world_size=get_world_size(group),
            group="world" if group is None else str(group.group_name),
            start=start,
            duration=seconds,
            waited=seconds,
            label=log_name,
        )
        for observer in tuple(TAPS.observers):
            observer(event)
        return work

    return call


def _bytes(sent: Any) -> int:
    if isinstance(sent, torch.Tensor):
        return sent.nbytes
    if isinstance(sent, (list, tuple)):
        return sum(_bytes(item) for item in sent)
    return 0


all_reduce = _observed("all_reduce")
all_reduce_coalesced = _observed("all_reduce_coalesced")
all_gather = _observed("all_gather")
all_gather_into_tensor = _observed("all_gather_into_tensor")
all_gather_coalesced = _observed("all_gather_coalesced")
all_gather_object = _observed("all_gather_object")
all_to_all = _observed("all_to_all")
all_to_all_single = _observed("all_to_all_single")
broadcast = _observed("broadcast")
broadcast_object_list = _observed("broadcast_object_list")
gather = _observed("gather")
reduce = _observed("reduce")
reduce_scatter = _observed("reduce_scatter")
reduce_scatter_tensor = _observed("reduce_scatter_tensor")
scatter = _observed("scatter")
barrier = _observed("barrier")
monitored_barrier = _observed("monitored_barrier")
send = _observed("send")
recv = _observed("recv")
isend = dist.isend
irecv = dist.irecv
allgather_fn = all_gather_into_tensor
reduce_scatter_fn = reduce_scatter_tensor
inference_all_reduce = all_reduce


def has_all_gather_into_tensor() -> bool:
    """Always true: every supported PyTorch has it."""
    return True


has_reduce_scatter_tensor = has_all_reduce_coalesced = has_coalescing_manager = (
    has_all_gather_into_tensor
)

default_pg_timeout = timedelta(minutes=10)


__getattr__ = fallback(__name__)
