"""The options of the command `deepspeed`."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from deepspeed import __version__
from deepspeed.launcher.errors import LaunchError

DEFAULT_HOSTFILE = "/job/hostfile"
DEFAULT_PORT = 29500

_EPILOG = """\
Options go before the script; what follows it belongs to the script. On one machine without
--num_gpus: one process a GPU, or one a NUMA node where there is none. A port is chosen freely on
one machine unless --master_port or MASTER_PORT gives one. Remote processes get the variables named
in ~/.deepspeed_env and ./.deepspeed_env (lines NAME=VALUE)."""


@dataclass(frozen=True)
class LaunchOptions:
    """One field an option; see `parser` for what they mean."""

    user_script: str
    user_args: tuple[str, ...] = ()
    hostfile: str = DEFAULT_HOSTFILE
    include: str = ""
    exclude: str = ""
    num_nodes: int = -1
    num_gpus: int = -1
    master_addr: str = ""
    master_port: int | None = None
    node_rank: int = -1
    launcher: str = ""
    launcher_args: str = ""
    module: bool = False
    no_python: bool = False
    no_local_rank: bool = False
    no_ssh: bool = False
    no_ssh_check: bool = False
    force_multi: bool = False
    save_pid: bool = False
    enable_each_rank_log: str | None = None
    bind_cores_to_rank: bool = False
    bind_core_list: str | None = None
    ssh_port: int | None = None
    venv_script: str | None = None
    log_level: str = "info"
    quiet: bool = False


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if message.startswith("the following arguments are required"):
            message = (
                "name the script to start, with its arguments after it, e.g. "
                "deepspeed --num_gpus 2 train.py --epochs 3 (deepspeed --help lists the options)"
            )
        before, unknown, names = message.partition("unrecognized arguments: ")
        if unknown:
            known = [name for action in self._actions for name in action.option_strings]
            first = names.split(" ")[0].partition("=")[0]
            message = f"{before}{unknown}{names}{nearest(first, known)}"
        super().error(message)


def parser() -> argparse.ArgumentParser:
    """The command line of `deepspeed`."""
    made = _Parser(
        prog="deepspeed",
        usage="deepspeed [OPTIONS] SCRIPT [ARGUMENTS OF THE SCRIPT]",
        description="Start a script on the cores or GPUs of one or many machines.",
        epilog=_EPILOG,
    )
    made.add_argument("--version", action="version", version=f"deepspeed {__version__}")
    _add_places(made)
    _add_processes(made)
    _add_remote(made)
    made.add_argument("user_script", metavar="SCRIPT", help="the script")
    made.add_argument(
        "user_args", metavar="ARGUMENTS", nargs=argparse.REMAINDER, help="its arguments"
    )
    return made


def _add_places(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("where to run")
    group.add_argument(
        "-H",
        "--hostfile",
        default=DEFAULT_HOSTFILE,
        help="lines 'HOST slots=N' (default: %(default)s if it exists, else this machine)",
    )
    spec = "HOST[:SLOT,SLOT-SLOT][@HOST...]; without slots the whole host"
    group.add_argument("-i", "--include", default="", help=f"use only {spec}")
    group.add_argument("-e", "--exclude", default="", help=f"leave out {spec}")
    group.add_argument("--num_nodes", type=int, default=-1, help="the first N hosts")
    group.add_argument(
        "--num_gpus",
        "--num_accelerators",
        type=int,
        default=-1,
        metavar="N",
        help="N processes on each host, on its first N devices",
    )
    group.add_argument("--master_addr", default="", help="address of the first host")
    group.add_argument(
        "--master_port",
        type=int,
        default=None,
        help=f"rendezvous port (default: a free one on one machine, else {DEFAULT_PORT})",
    )
    group.add_argument(
        "--bind_cores_to_rank", action="store_true", help="give each rank cores of its own"
    )
    group.add_argument("--bind_core_list", help="the cores to share out, as in 1,3-5,7")


def _add_processes(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("what to run")
    group.add_argument(
        "--module", action="store_true", help="the script is a module, run as with python -m"
    )
    group.add_argument(
        "--no_python", action="store_true", help="the script is a program, run without python"
    )
    group.add_argument(
        "--no_local_rank", action="store_true", help="do not add --local_rank=N to its arguments"
    )
    group.add_argument(
        "--enable_each_rank_log",
        metavar="DIR",
        help="write each rank's output to a file of its own in DIR, not to the terminal",
    )
    group.add_argument(
        "--save_pid",
        action="store_true",
        help="write the launcher's pid to /tmp/PARENT.ds while it runs",
    )
    group.add_argument(
        "--log_level",
        choices=["debug", "info", "warning", "error", "critical"],
        default="info",
        help="what the launcher says (default: %(default)s)",
    )
    group.add_argument("-q", "--quiet", action="store_true", help="the same as --log_level error")


def _add_remote(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("many machines")
    group.add_argument(
        "--launcher",
        default="",
        help="pdsh, ssh, openmpi, mpich, impi, mvapich or slurm (default: pdsh, else ssh)",
    )
    group.add_argument("--launcher_args", default="", help="further arguments for that program")
    group.add_argument(
        "--force_multi", action="store_true", help="use the launcher for a single host too"
    )
    group.add_argument(
        "--no_ssh", action="store_true", help="start this machine's ranks only (see --node_rank)"
    )
    group.add_argument("--node_rank", type=int, default=-1, help="place of this machine, from 0")
    group.add_argument("--no_ssh_check", action="store_true", help="do not try ssh beforehand")
    group.add_argument("--ssh_port", type=int, help="port of the ssh servers")
    group.add_argument("--venv_script", help="a script that each host sources first")
    for name in _REFUSED:
        if name == "--elastic_training":
            group.add_argument(name, action="store_const", const="", help=argparse.SUPPRESS)
        else:
            group.add_argument(name, help=argparse.SUPPRESS)


_REFUSED = {
    "--autotuning": "tuning is not part of this installation",
    "--elastic_training": "elastic restarts are not part of this installation",
    "--min_elastic_nodes": "elastic restarts are not part of this installation",
    "--max_elastic_nodes": "elastic restarts are not part of this installation",
}


def parse(arguments: Sequence[str]) -> LaunchOptions:
    """Read a command line; faults that argparse cannot see raise `LaunchError`."""
    values = vars(parser().parse_args(arguments))
    for name, reason in _REFUSED.items():
        if values.pop(name.lstrip("-")) not in (None, "-1"):
            raise LaunchError(f"{name}: {reason}; leave the option out")
    values["user_args"] = tuple(values["user_args"])
    options = LaunchOptions(**values)
    if options.module and options.no_python:
        raise LaunchError("--module and --no_python: give one of them, a module needs python")
    if options.no_ssh and options.node_rank < 0:
        raise LaunchError("--no_ssh: say with --node_rank N which of the machines this one is")
    for name in ("num_nodes", "num_gpus"):
        if getattr(options, name) == 0 or getattr(options, name) < -1:
            raise LaunchError(f"--{name} {getattr(options, name)}: must be at least 1")
    if options.master_port is not None and not 0 < options.master_port < 65536:
        raise LaunchError(f"--master_port {options.master_port}: must lie in 1..65535")
    return options


def misplaced(options: LaunchOptions) -> list[str]:
    """Options of ours that were given after the script, and so to the script."""
    ours = {
        name
        for action in parser()._actions
        for name in action.option_strings
        if name.startswith("--") and name not in _REFUSED
    } - {"--help", "--module", "--version"}
    given = (argument.partition("=")[0] for argument in options.user_args)
    return [name for name in dict.fromkeys(given) if name in ours]


def nearest(name: str, known: Sequence[str]) -> str:
    """A hint `, did you mean 'x'?`, or nothing."""
    close = difflib.get_close_matches(name, known, n=1)
    return f", did you mean {close[0]!r}?" if close else ""
