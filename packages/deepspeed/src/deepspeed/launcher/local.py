"""The ranks of one machine: their command lines, environments and cores.

`python -m deepspeed.launcher.local` is what a multi-machine launcher starts on each host.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deepspeed import environment
from deepspeed.launcher import cores
from deepspeed.launcher.devices import LocalDevices, find_devices
from deepspeed.launcher.errors import LaunchError
from deepspeed.launcher.hosts import Slots
from deepspeed.launcher.keeper import Command, run_commands
from deepspeed.launcher.options import nearest
from deepspeed.launcher.ports import PortClaim


@dataclass(frozen=True)
class Program:
    """What every rank runs."""

    script: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    no_python: bool = False
    no_local_rank: bool = False

    def refuse_missing(self) -> None:
        """Raise `LaunchError` if python would not find the script on this machine."""
        path = Path(self.script)
        if self.module or self.no_python or self.script == "-":
            return
        if not path.exists():
            near = nearest(str(path), list(map(str, path.parent.glob("*.py"))))
            raise LaunchError(f"{self.script}: no such script{near} (looked in {Path.cwd()})")
        if path.is_dir() and not (path / "__main__.py").exists():
            raise LaunchError(f"{self.script}: a folder without __main__.py is no script")

    def argv(self, local_rank: int | None = None) -> list[str]:
        """The command line; `--local_rank` is left out where it is not known."""
        start = [] if self.no_python else [sys.executable, "-u"]
        if self.module:
            start.append("-m")
        given = local_rank is not None and not self.no_local_rank
        added = [f"--local_rank={local_rank}"] if given else []
        return [*start, self.script, *added, *self.arguments]


@dataclass(frozen=True)
class NodeJob:
    """The part of a job that lies on one machine; `world` lists the slots of all of them."""

    world: Slots
    node: int
    master_addr: str
    master_port: int
    program: Program
    log_dir: str | None = None
    bind_cores: bool = False
    core_list: str | None = None

    @property
    def slots(self) -> list[int]:
        """The slots used on this machine."""
        return list(self.world.values())[self.node]

    @property
    def first_rank(self) -> int:
        """The rank of this machine's first process."""
        return sum(map(len, list(self.world.values())[: self.node]))

    @property
    def world_size(self) -> int:
        """The number of ranks on all machines."""
        return sum(map(len, self.world.values()))


def rank_commands(job: NodeJob, devices: LocalDevices) -> list[Command]:
    """One command a rank of this machine; a script that is not there is refused."""
    job.program.refuse_missing()
    count = len(job.slots)
    shared = devices.visible(job.slots) | {
        "MASTER_ADDR": job.master_addr,
        "MASTER_PORT": str(job.master_port),
        "WORLD_SIZE": str(job.world_size),
        "LOCAL_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "CROSS_RANK": str(job.node),
        "CROSS_SIZE": str(len(job.world)),
    }
    bound: list[list[int]] = [[] for _ in range(count)]
    if job.bind_cores or job.core_list is not None:
        bound = cores.share(cores.cores_to_bind(job.core_list), count)
    if not environment.is_set("OMP_NUM_THREADS"):
        threads = len(bound[0]) or cores.threads_a_rank(count)
        shared["OMP_NUM_THREADS"] = str(threads)
    logs = _log_files(job, count)
    if sys.stderr.isatty() and not environment.is_set("COLUMNS"):
        # ranks write to a pipe: progress bars learn the terminal's width from here
        shared["COLUMNS"] = str(os.get_terminal_size(sys.stderr.fileno()).columns)
    return [
        Command(
            label=f"rank {job.first_rank + local}",
            argv=job.program.argv(local),
            environ=shared | {"RANK": str(job.first_rank + local), "LOCAL_RANK": str(local)},
            cores=bound[local],
            log=logs[local],
        )
        for local in range(count)
    ]


def _log_files(job: NodeJob, count: int) -> list[str | None]:
    if job.log_dir is None:
        return [None] * count
    folder = Path(job.log_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"--enable_each_rank_log {folder}: {error.strerror}") from error
    stamp = time.strftime("%Y%m%d%H%M%S")
    return [str(folder / f"{stamp}_rank{job.first_rank + local}.log") for local in range(count)]


def encode_world(world: Slots) -> str:
    """Hosts and slots as one word for a command line."""
    return base64.urlsafe_b64encode(json.dumps(world).encode()).decode()


def decode_world(text: str) -> Slots:
    """The inverse of `encode_world`."""
    world: Slots = json.loads(base64.urlsafe_b64decode(text))
    return world


def main(arguments: Sequence[str] | None = None) -> int:
    """Run this machine's ranks until all have ended."""
    parser = argparse.ArgumentParser(prog="python -m deepspeed.launcher.local")
    parser.add_argument("--world_info", required=True, type=decode_world)
    parser.add_argument("--node_rank", required=True, type=int)
    parser.add_argument("--master_addr", required=True)
    parser.add_argument("--master_port", required=True, type=int)
    parser.add_argument("--enable_each_rank_log")
    parser.add_argument("--bind_core_list")
    for flag in ("--bind_cores_to_rank", "--module", "--no_python", "--no_local_rank"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    job = NodeJob(
        world=given.world_info,
        node=given.node_rank,
        master_addr=given.master_addr,
        master_port=given.master_port,
        program=Program(
            given.script,
            tuple(given.arguments),
            module=given.module,
            no_python=given.no_python,
            no_local_rank=given.no_local_rank,
        ),
        log_dir=given.enable_each_rank_log,
        bind_cores=given.bind_cores_to_rank,
        core_list=given.bind_core_list,
    )
    try:
        commands = rank_commands(job, find_devices())
        with PortClaim(job.master_port) if job.node == 0 else contextlib.nullcontext():
            return run_commands(commands, follow_output=True)
    except (LaunchError, environment.EnvironmentFault) as error:
        sys.stderr.write(f"deepspeed: {os.uname().nodename}: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
