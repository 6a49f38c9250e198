"""Many machines through ssh alone."""

from __future__ import annotations

from deepspeed.launcher.keeper import Command
from deepspeed.launcher.runners.base import ClusterJob, node_argv, shell_line


def ssh_argv(host: str, port: int | None = None) -> list[str]:
    """The start of an ssh command that never asks and never reads our standard input."""
    ports = [] if port is None else ["-p", str(port)]
    user, _, name = host.rpartition("@")
    users = ["-l", user] if user else []
    return ["ssh", "-n", "-o", "BatchMode=yes", *ports, *users, name.strip("[]")]


class Ssh:
    """One `ssh` a machine. When one ends with a fault, the others are stopped at once."""

    name = "ssh"
    program = "ssh"

    def commands(self, job: ClusterJob) -> list[Command]:
        """One command a machine."""
        found = []
        for node, host in enumerate(job.world):
            head = ssh_argv(host, job.ssh_port)
            argv = [*head[:-1], *job.launcher_args, head[-1]]
            line = shell_line(job, node_argv(job, node))
            found.append(Command(f"host {host}", [*argv, line]))
        return found
