"""Many machines through Hydra, the mpirun of MPICH and its descendants."""

from __future__ import annotations

from deepspeed.launcher.keeper import Command
from deepspeed.launcher.runners.base import (
    ClusterJob,
    device_exports,
    plain_hosts,
    rank_argv,
    rendezvous,
)


class Mpich:
    """`mpirun` starts every rank; the rank finds its place in the PMI_* variables."""

    name = "mpich"
    program = "mpirun"

    def commands(self, job: ClusterJob) -> list[Command]:
        """A single command."""
        exports = job.exports | device_exports(job, self.name) | rendezvous(job)
        # the values come from mpirun's own environment, so that any text is safe
        variables = ["-genvlist", ",".join(exports), "-wdir", str(job.folder)]
        argv = ["mpirun", *job.launcher_args, *variables, *self.places(job)]
        return [Command("mpirun", argv, exports)]

    def places(self, job: ClusterJob) -> list[str]:
        """Hosts, number of ranks and what each rank runs."""
        hosts = plain_hosts(job, self.name)
        counts = ",".join(f"{host}:{len(job.world[host])}" for host in hosts)
        return ["-hosts", counts, "-n", str(job.world_size), *rank_argv(job)]


class Mvapich(Mpich):
    """MVAPICH, whose mpirun is MPICH's."""

    name = "mvapich"


class IntelMpi(Mpich):
    """Intel MPI, where counts that differ by host need one section of the line a host."""

    name = "impi"

    def places(self, job: ClusterJob) -> list[str]:
        """One section a host."""
        found: list[str] = []
        for host in plain_hosts(job, self.name):
            separator = [":"] if found else []
            ranks = str(len(job.world[host]))
            found += [*separator, "-host", host, "-n", ranks, *rank_argv(job)]
        return found
