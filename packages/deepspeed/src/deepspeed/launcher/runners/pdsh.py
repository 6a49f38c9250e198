"""Many machines through pdsh."""

from __future__ import annotations

from deepspeed.launcher.errors import LaunchError
from deepspeed.launcher.keeper import Command
from deepspeed.launcher.runners.base import ClusterJob, node_argv, shell_line


class Pdsh:
    """One `pdsh` a machine: a single one would wait for all machines even after one has failed."""

    name = "pdsh"
    program = "pdsh"

    def commands(self, job: ClusterJob) -> list[Command]:
        """One command a machine."""
        environ = {"PDSH_RCMD_TYPE": "ssh"}
        if job.ssh_port is not None:
            environ["PDSH_SSH_ARGS_APPEND"] = f"-p {job.ssh_port}"
        found = []
        for node, host in enumerate(job.world):
            if ":" in host:
                raise LaunchError(
                    f"--launcher pdsh: host {host!r}: it takes no IPv6 addresses;"
                    " use --launcher ssh"
                )
            # pdsh replaces %n, %h and %u in the command, and %% by %; -S hands on its exit code
            line = shell_line(job, node_argv(job, node)).replace("%", "%%")
            argv = ["pdsh", "-S", "-w", host, *job.launcher_args, line]
            found.append(Command(f"host {host}", argv, environ))
        return found
