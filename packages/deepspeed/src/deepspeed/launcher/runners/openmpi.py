"""Many machines through Open MPI's mpirun."""

from __future__ import annotations

from deepspeed.launcher.keeper import Command
from deepspeed.launcher.runners.base import (
    ClusterJob,
    device_exports,
    plain_hosts,
    rank_argv,
    rendezvous,
)


class OpenMpi:
    """`mpirun` starts every rank; the rank finds its place in the OMPI_* variables."""

    name = "openmpi"
    program = "mpirun"

    def commands(self, job: ClusterJob) -> list[Command]:
        """A single command."""
        counts = ",".join(f"{host}:{len(job.world[host])}" for host in plain_hosts(job, self.name))
        exports = job.exports | device_exports(job, self.name) | rendezvous(job)
        argv = [
            *("mpirun", "-n", str(job.world_size), "--host", counts),
            *("--map-by", "slot", "--bind-to", "none", "--wdir", str(job.folder)),
            *job.launcher_args,
        ]
        # the values come from mpirun's own environment, so that any text is safe
        for name in exports:
            argv += ["-x", name]
        return [Command("mpirun", [*argv, *rank_argv(job)], exports)]
