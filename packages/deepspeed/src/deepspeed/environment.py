"""The environment variables that this package reads (nothing else of ours reads any).

Functions take the environment as an argument, so that tests need not change the real one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ds_core.errors import DSError

ENV_FILE_NAME = ".deepspeed_env"
LOCAL_RANK = "LOCAL_RANK"
CROSS_RANK = "CROSS_RANK"
CROSS_SIZE = "CROSS_SIZE"
_DEVICE_LISTS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class EnvironmentFault(DSError, ValueError):
    """Environment variables that contradict each other or cannot be read."""


@dataclass(frozen=True)
class Placement:
    """Where this process stands in its job.

    `source` says who told us. `master_addr` and `master_port` are None where nobody did.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_addr: str | None
    master_port: int | None
    source: str


@dataclass(frozen=True)
class _Starter:
    """The variables that one kind of starter sets; the first two must both be there."""

    name: str
    rank: str
    world_size: str
    local_rank: str
    local_world_size: str


_STARTERS = (
    _Starter("RANK and WORLD_SIZE", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    _Starter(
        "Open MPI",
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    _Starter(
        "MVAPICH",
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    # SLURM_STEP_NUM_TASKS is set in tasks of srun only; SLURM_NTASKS also in the batch script
    _Starter(
        "Slurm",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_LOCALID",
        "SLURM_STEP_TASKS_PER_NODE",
    ),
    _Starter("MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


def discover_placement(environ: Mapping[str, str] | None = None) -> Placement | None:
    """Find the rank, world size and rendezvous that the starter of this process set.

    Looks for the variables of `deepspeed` and `torchrun`, then of Open MPI, MVAPICH, Slurm, MPICH
    and Intel MPI. None when this process was started alone. Raises `EnvironmentFault` for values
    that are no numbers or do not fit together.
    """
    environ = os.environ if environ is None else environ
    for starter in _STARTERS:
        if starter.rank in environ and starter.world_size in environ:
            return _placement(starter, environ)
    return None


def _placement(starter: _Starter, environ: Mapping[str, str]) -> Placement:
    rank = _number(environ, starter.rank)
    world_size = _number(environ, starter.world_size)
    if rank >= world_size:
        raise EnvironmentFault(
            f"{starter.rank}={rank} and {starter.world_size}={world_size}:"
            " the rank must be smaller than the world size"
        )
    alone = world_size == 1
    local_rank = _number(environ, starter.local_rank, 0 if alone else None)
    if starter.name == "Slurm":
        local_size = _slurm_local_size(environ, world_size)
    else:
        local_size = _number(environ, starter.local_world_size, _legacy_size(environ, local_rank))
    address = environ.get("MASTER_ADDR") or None
    if address is None and local_size == world_size:
        address = "127.0.0.1"
    if address is None and starter.name == "Slurm":
        address = first_host(environ.get("SLURM_STEP_NODELIST", ""))
    port = _number(environ, "MASTER_PORT") if environ.get("MASTER_PORT") else None
    return Placement(rank, world_size, local_rank, local_size, address, port, starter.name)


def _legacy_size(environ: Mapping[str, str], local_rank: int) -> int:
    return _number(environ, "LOCAL_SIZE", local_rank + 1)


def _slurm_local_size(environ: Mapping[str, str], world_size: int) -> int:
    """This node's entry of a list like `4(x2),3`."""
    text = environ.get("SLURM_STEP_TASKS_PER_NODE", str(world_size))
    counts: list[int] = []
    for piece in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", piece)
        if match is None:
            raise EnvironmentFault(f"SLURM_STEP_TASKS_PER_NODE={text}: cannot be read")
        counts += [int(match[1])] * int(match[2] or 1)
    node = _number(environ, "SLURM_NODEID", 0)
    return counts[node] if node < len(counts) else counts[0]


def first_host(nodes: str) -> str | None:
    """The first host of a Slurm list like `gpu[03-07,9]-ib,login`."""
    match = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\]([^,\[]*))?", nodes)
    return match[1] + (match[2] or "") + (match[3] or "") if match else None


def _number(environ: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environ.get(name)
    if text is None or text == "":
        if default is None:
            raise EnvironmentFault(f"{name} is not set, though its companions are")
        return default
    if not text.strip().isdecimal():
        raise EnvironmentFault(f"{name}={text}: must be a whole number")
    return int(text)


def given_master_port(environ: Mapping[str, str] | None = None) -> int | None:
    """The port that MASTER_PORT asks for, if any."""
    environ = os.environ if environ is None else environ
    if not environ.get("MASTER_PORT"):
        return None
    port = _number(environ, "MASTER_PORT")
    if not 0 < port < 65536:
        raise EnvironmentFault(f"MASTER_PORT={port}: must lie in 1..65535")
    return port


def given_master_addr(environ: Mapping[str, str] | None = None) -> str | None:
    """The address that MASTER_ADDR asks for, if any."""
    return (os.environ if environ is None else environ).get("MASTER_ADDR") or None


def visible_devices(environ: Mapping[str, str] | None = None) -> tuple[str, list[str]] | None:
    """The variable that limits the visible GPUs and what it lists; None when none is set."""
    environ = os.environ if environ is None else environ
    for name in _DEVICE_LISTS:
        if name in environ:
            pieces = (piece.strip() for piece in environ[name].split(","))
            devices = [piece for piece in pieces if piece]
            # a negative number hides itself and all that follow
            hidden = next((i for i, d in enumerate(devices) if d.startswith("-")), len(devices))
            return name, devices[:hidden]
    return None


def forced_accelerator(environ: Mapping[str, str] | None = None) -> str | None:
    """The device type that DS_ACCELERATOR asks for, if any."""
    return (os.environ if environ is None else environ).get("DS_ACCELERATOR") or None


def is_set(name: str, environ: Mapping[str, str] | None = None) -> bool:
    """Whether the user has set a variable that we would set otherwise."""
    return bool((os.environ if environ is None else environ).get(name))


def env_file_name(environ: Mapping[str, str] | None = None) -> str:
    """Name or path of the file with variables for remote processes (DS_ENV_FILE)."""
    return (os.environ if environ is None else environ).get("DS_ENV_FILE") or ENV_FILE_NAME


def exported(prefixes: tuple[str, ...], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The variables that start with one of `prefixes`."""
    environ = os.environ if environ is None else environ
    return {name: value for name, value in environ.items() if name.startswith(prefixes)}
