"""Many machines through Slurm's srun."""

from __future__ import annotations

from deepspeed.launcher.errors import LaunchError
from deepspeed.launcher.keeper import Command
from deepspeed.launcher.runners.base import (
    ClusterJob,
    device_exports,
    plain_hosts,
    rank_argv,
    rendezvous,
)


class Slurm:
    """`srun` starts every rank; the rank finds its place in the SLURM_* variables."""

    name = "slurm"
    program = "srun"

    def commands(self, job: ClusterJob) -> list[Command]:
        """A single command."""
        hosts = plain_hosts(job, self.name)
        counts = {len(slots) for slots in job.world.values()}
        if len(counts) > 1:
            raise LaunchError(
                "--launcher slurm: every host must run as many ranks as the others, not "
                + ", ".join(f"{host}:{len(slots)}" for host, slots in job.world.items())
                + "; choose equal slots with --include or --num_gpus, or use --launcher ssh"
            )
        exports = job.exports | device_exports(job, self.name) | rendezvous(job)
        argv = [
            *("srun", "--nodes", str(len(hosts)), "--nodelist", ",".join(hosts)),
            *("--ntasks", str(job.world_size), "--ntasks-per-node", str(counts.pop())),
            # srun passes its own environment on; in --export itself a comma would end a value
            *("--export=ALL", "--chdir", str(job.folder), "--kill-on-bad-exit=1"),
            *job.launcher_args,
        ]
        return [Command("srun", [*argv, *rank_argv(job)], exports)]
