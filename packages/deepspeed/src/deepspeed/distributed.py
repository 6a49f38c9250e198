"""Brings up the process group that a job's starter described."""

from __future__ import annotations

import atexit
import logging
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from deepspeed.environment import Placement, discover_placement, forced_accelerator
from ds_core import device
from ds_core.errors import ConfigError

logger = logging.getLogger(__name__)

DEFAULT_PORT = 29500
DEFAULT_TIMEOUT = timedelta(minutes=10)


def init_distributed(
    dist_backend: str | None = None,
    auto_mpi_discovery: bool = True,
    distributed_port: int = DEFAULT_PORT,
    verbose: bool = True,
    timeout: timedelta = DEFAULT_TIMEOUT,
    init_method: str | None = None,
    dist_init_required: bool | None = None,
    config: Any = None,
    rank: int = -1,
    world_size: int = -1,
) -> None:
    """Initialise `torch.distributed`, unless it is already.

    Ranks come from the arguments, else from the environment (`deepspeed`, `torchrun`, MPI, Slurm);
    a process started alone becomes a group of one, which needs no port.

    Args:
        dist_backend: `gloo`, `nccl`, ...; None picks the one for the device of this machine.
        auto_mpi_discovery: look for MPI's and Slurm's variables if RANK is not set.
        distributed_port: used where the environment names none.
        timeout: how long a collective may take before it fails.
        init_method: a rendezvous URL, instead of MASTER_ADDR and MASTER_PORT.
        dist_init_required: False if the caller has initialised it; then it must be.

    Raises:
        ConfigError: if it should be initialised already but is not, or ranks do not fit together.
    """
    if dist.is_initialized():
        return
    if dist_init_required is False:
        raise ConfigError(
            "dist_init_required=False, but torch.distributed is not initialised; call "
            "deepspeed.init_distributed() first or leave the argument out"
        )
    atexit.unregister(_let_threads_finish)
    atexit.register(_let_threads_finish)
    backend = dist_backend or device.default_backend(device_type())
    placement = _given(rank, world_size) or discover_placement()
    if placement is not None and not auto_mpi_discovery and "RANK" not in placement.source:
        placement = None
    if placement is None:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=timeout)
        return
    if init_method is None:
        address = placement.master_addr or "127.0.0.1"
        init_method = f"tcp://{address}:{placement.master_port or distributed_port}"
        if placement.source == "RANK and WORLD_SIZE" and placement.master_port is not None:
            init_method = "env://"
    logger.info("rank %d of %d, %s", placement.rank, placement.world_size, backend)
    dist.init_process_group(
        backend,
        init_method=init_method,
        rank=placement.rank,
        world_size=placement.world_size,
        timeout=timeout,
    )


def device_type() -> str:
    """The device type to compute on: DS_ACCELERATOR if set, else what the machine has."""
    return forced_accelerator() or device.device_type()


def local_rank() -> int:
    """This process's rank on its host; 0 if it was started alone."""
    placement = discover_placement()
    return 0 if placement is None else placement.local_rank


def _let_threads_finish() -> None:
    """Give threads of gloo that wait for the interpreter's lock a chance to take it.

    A thread that lets go of the tensor of the last collective needs the lock; if the interpreter
    begins to end while it waits, the process aborts ("terminate called without an active
    exception", https://github.com/pytorch/pytorch/issues/190489).
    """
    if dist.is_initialized():
        time.sleep(0.01)


def _given(rank: int, world_size: int) -> Placement | None:
    if rank < 0 and world_size < 0:
        return None
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank {rank} does not fit a world of {world_size}")
    found = discover_placement()
    return Placement(
        rank=rank,
        world_size=world_size,
        local_rank=rank if found is None else found.local_rank,
        local_world_size=world_size if found is None else found.local_world_size,
        master_addr=None if found is None else found.master_addr,
        master_port=None if found is None else found.master_port,
        source="the arguments",
    )
