"""What a launcher of many machines is given, and what it renders."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from deepspeed.launcher.errors import LaunchError
from deepspeed.launcher.hosts import Slots
from deepspeed.launcher.keeper import Command
from deepspeed.launcher.local import Program, encode_world


@dataclass(frozen=True)
class ClusterJob:
    """A job on many machines.

    `exports` are the variables every rank gets; `node_options` are options that each machine's
    part takes too (`local.main`); `launcher_args` go to the launching program unchanged.
    """

    world: Slots
    master_addr: str
    master_port: int
    program: Program
    folder: Path
    exports: dict[str, str] = field(default_factory=dict)
    node_options: Sequence[str] = ()
    launcher_args: Sequence[str] = ()
    ssh_port: int | None = None
    venv_script: str | None = None

    @property
    def world_size(self) -> int:
        """The number of ranks on all machines."""
        return sum(map(len, self.world.values()))


class Runner(Protocol):
    """Renders a `ClusterJob` as command lines; one small class a launching program."""

    name: str
    program: str
    """The executable that must be there."""

    def commands(self, job: ClusterJob) -> list[Command]:
        """The processes to keep on this machine; raises `LaunchError` for what cannot be said."""
        ...


def node_argv(job: ClusterJob, node: int | str) -> list[str]:
    """The command that starts the ranks of one machine, there."""
    program = job.program
    flags = {
        "--module": program.module,
        "--no_python": program.no_python,
        "--no_local_rank": program.no_local_rank,
    }
    return [
        *(sys.executable, "-u", "-m", "deepspeed.launcher.local"),
        f"--world_info={encode_world(job.world)}",
        f"--node_rank={node}",
        f"--master_addr={job.master_addr}",
        f"--master_port={job.master_port}",
        *job.node_options,
        *(flag for flag, given in flags.items() if given),
        program.script,
        *program.arguments,
    ]


def rank_argv(job: ClusterJob) -> list[str]:
    """The command that an MPI or Slurm launcher starts once a rank."""
    program = job.program
    counts = ",".join(str(len(slots)) for slots in job.world.values())
    start = [sys.executable, "-u", "-m", "deepspeed.launcher.rank", f"--ranks={counts}"]
    flags = {
        "--module": program.module,
        "--no_python": program.no_python,
        "--no_local_rank": program.no_local_rank,
    }
    own = [flag for flag, given in flags.items() if given]
    argv = [*start, *own, program.script, *program.arguments]
    if job.venv_script is None:
        return argv
    return ["bash", "-c", f'source {shlex.quote(job.venv_script)} && exec "$@"', "bash", *argv]


def shell_line(job: ClusterJob, argv: Sequence[str]) -> str:
    """A line for the login shell of another machine: variables, folder, command."""
    words = [f"export {name}={shlex.quote(value)};" for name, value in job.exports.items()]
    words.append(f"cd {shlex.quote(str(job.folder))} &&")
    if job.venv_script is not None:
        words.append(f". {shlex.quote(job.venv_script)} &&")
    return " ".join([*words, "exec", shlex.join(argv)])


def plain_hosts(job: ClusterJob, launcher: str) -> list[str]:
    """The hosts, refused where their names hold a user or an IPv6 address."""
    for host in job.world:
        if "@" in host or ":" in host:
            what = "user names" if "@" in host else "IPv6 addresses"
            raise LaunchError(
                f"--launcher {launcher}: host {host!r}: it takes no {what} in host names;"
                " use --launcher ssh"
            )
    return list(job.world)


def device_exports(job: ClusterJob, launcher: str) -> dict[str, str]:
    """The variable that picks devices where each rank finds its own by its local rank.

    Nothing when every host uses its first slots; refused when hosts use different ones, since one
    environment is all that these launchers pass.
    """
    chosen = list(job.world.values())
    if all(slots == list(range(len(slots))) for slots in chosen):
        return {}
    if any(slots != chosen[0] for slots in chosen):
        raise LaunchError(
            f"--launcher {launcher}: it cannot use other slots on each host"
            f" ({', '.join(f'{host}:{slots}' for host, slots in job.world.items())});"
            " use --launcher pdsh or ssh"
        )
    return {"CUDA_VISIBLE_DEVICES": ",".join(map(str, chosen[0]))}


def rendezvous(job: ClusterJob) -> dict[str, str]:
    """What ranks need to find each other when no launcher of ours runs on their machine."""
    return {"MASTER_ADDR": job.master_addr, "MASTER_PORT": str(job.master_port)}
