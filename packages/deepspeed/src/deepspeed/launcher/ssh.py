"""The command `ds_ssh`: runs a command on every host of a hostfile."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from deepspeed.console import printing
from deepspeed.launcher import hosts
from deepspeed.launcher.errors import LaunchError
from deepspeed.launcher.options import DEFAULT_HOSTFILE
from deepspeed.launcher.runners.ssh import ssh_argv

_AT_ONCE = 64


@printing
def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, or the largest exit code of a host."""
    parser = argparse.ArgumentParser(
        prog="ds_ssh",
        description="Run a shell command on every host of a hostfile, many at a time.",
    )
    parser.add_argument(
        "-f", "-H", "--hostfile", default=DEFAULT_HOSTFILE, help="default: %(default)s"
    )
    parser.add_argument("--include", default="", help="only these: HOST[@HOST...]")
    parser.add_argument("--exclude", default="", help="all but these: HOST[@HOST...]")
    parser.add_argument("--ssh_port", type=int, help="port of the ssh servers")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command and its arguments")
    given = parser.parse_args(arguments)
    if not given.command:
        parser.error("no command given")
    try:
        pool = hosts.read_hostfile(given.hostfile, required=True) or {}
        world = hosts.select(hosts.all_slots(pool), include=given.include, exclude=given.exclude)
    except LaunchError as error:
        sys.stderr.write(f"ds_ssh: {error}\n")
        return 2
    return run_on(list(world), given.command, port=given.ssh_port)


def run_on(names: Sequence[str], command: Sequence[str], *, port: int | None = None) -> int:
    """Run `command` on each host at once and write what each says as it ends, by its name.

    A single word is a shell line as it stands; several are quoted, so that they arrive as given.
    """
    line = command[0] if len(command) == 1 else shlex.join(command)

    def run(host: str) -> subprocess.CompletedProcess[str]:
        argv = [*ssh_argv(host, port), line]
        return subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)

    worst = 0
    with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(names))) as pool:
        for host, done in zip(names, pool.map(run, names), strict=True):
            for stream, text in ((sys.stdout, done.stdout), (sys.stderr, done.stderr)):
                stream.writelines(f"{host}: {row}\n" for row in text.splitlines())
            if done.returncode != 0:
                sys.stderr.write(f"{host}: exit code {done.returncode}\n")
            worst = max(worst, 255 if done.returncode < 0 else done.returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
