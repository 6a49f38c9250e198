"""Starting a job on many machines: addresses, variables to pass on, the launcher to use."""

from __future__ import annotations

import ipaddress
import logging
import re
import shlex
import shutil
import subprocess
from pathlib import Path

from deepspeed import environment
from deepspeed.launcher import runners
from deepspeed.launcher.errors import LaunchError
from deepspeed.launcher.hosts import Slots
from deepspeed.launcher.local import Program
from deepspeed.launcher.options import DEFAULT_PORT, LaunchOptions, nearest
from deepspeed.launcher.runners.ssh import ssh_argv
from deepspeed.launcher.supervise import supervise

logger = logging.getLogger(__name__)

EXPORTED_PREFIXES = (
    *("NCCL", "GLOO", "TORCH_", "OMP_", "UCX", "MV2"),
    *("PYTHON", "MLFLOW", "DS_"),
)

_RUNNERS: tuple[type[runners.Runner], ...] = (
    runners.Pdsh,
    runners.Ssh,
    runners.OpenMpi,
    runners.Mpich,
    runners.IntelMpi,
    runners.Mvapich,
    runners.Slurm,
)


def launch_cluster(
    given: LaunchOptions, world: Slots, *, prefixes: tuple[str, ...] = EXPORTED_PREFIXES
) -> int:
    """Run a job on the hosts of `world`; `prefixes` says which of our variables ranks get."""
    runner = choose_runner(given.launcher)
    if shutil.which(runner.program) is None:
        raise LaunchError(
            f"--launcher {runner.name}: no program {runner.program!r} on this machine;"
            f" install it or choose another launcher"
        )
    by_ssh = runner.name in ("pdsh", "ssh")
    if by_ssh and not given.no_ssh_check:
        _check_ssh(next(iter(world)), given.ssh_port)
    job = cluster_job(given, world, prefixes=prefixes, by_ssh=by_ssh)
    commands = runner.commands(job)
    logger.info(
        "%d ranks on %d hosts by %s, %s port %d",
        *(job.world_size, len(world), runner.name, job.master_addr, job.master_port),
    )
    for command in commands:
        logger.debug("%s", shlex.join(command.argv))
    return supervise(commands)


def choose_runner(name: str) -> runners.Runner:
    """The runner of that name; without one pdsh where it is installed, else ssh."""
    if not name:
        return runners.Pdsh() if shutil.which(runners.Pdsh.program) else runners.Ssh()
    known = {kind.name: kind for kind in _RUNNERS}
    if name.lower() not in known:
        raise LaunchError(
            f"--launcher {name}: expected one of {', '.join(known)}{nearest(name, list(known))}"
        )
    return known[name.lower()]()


def cluster_job(
    given: LaunchOptions, world: Slots, *, prefixes: tuple[str, ...], by_ssh: bool
) -> runners.ClusterJob:
    """Gather what a runner renders."""
    first = next(iter(world))
    address = given.master_addr or environment.given_master_addr()
    if address is None:
        address = _address_of(first, given.ssh_port) if by_ssh else first.rpartition("@")[2]
    port = given.master_port or environment.given_master_port() or DEFAULT_PORT
    program = Program(
        given.user_script,
        given.user_args,
        module=given.module,
        no_python=given.no_python,
        no_local_rank=given.no_local_rank,
    )
    folder = Path.cwd()
    exports = environment.exported(prefixes) | read_env_files(
        [Path.home(), folder], name=environment.env_file_name()
    )
    # scripts import what lies in the folder they were started from, on every machine
    paths = [exports["PYTHONPATH"]] if exports.get("PYTHONPATH") else []
    exports["PYTHONPATH"] = ":".join([str(folder), *paths])
    return runners.ClusterJob(
        world=world,
        master_addr=address,
        master_port=port,
        program=program,
        folder=folder,
        exports=exports,
        node_options=node_options(given, by_ssh=by_ssh),
        launcher_args=tuple(shlex.split(given.launcher_args)),
        ssh_port=given.ssh_port,
        venv_script=given.venv_script,
    )


def node_options(given: LaunchOptions, *, by_ssh: bool) -> list[str]:
    """The options that each machine's part of the job takes."""
    found = []
    if given.enable_each_rank_log is not None:
        found.append(f"--enable_each_rank_log={given.enable_each_rank_log}")
    if given.bind_cores_to_rank:
        found.append("--bind_cores_to_rank")
    if given.bind_core_list is not None:
        found.append(f"--bind_core_list={given.bind_core_list}")
    if found and not by_ssh:
        raise LaunchError(
            f"{found[0].partition('=')[0]}: only pdsh and ssh serve it; with --launcher"
            f" {given.launcher} give that program's own option in --launcher_args"
        )
    return found


def read_env_files(folders: list[Path], *, name: str) -> dict[str, str]:
    """The variables of `name` in each folder, a later one winning; an absolute name is one file."""
    found: dict[str, str] = {}
    for path in dict.fromkeys(folder / name for folder in folders):
        if path.is_file():
            found |= parse_env_file(path.read_text(), name=str(path))
    return found


def parse_env_file(text: str, *, name: str) -> dict[str, str]:
    """Lines `NAME=VALUE`; blank lines and lines that begin with `#` count for nothing."""
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        variable, equals, value = line.partition("=")
        variable = variable.strip().removeprefix("export ").strip()
        if not equals or not re.fullmatch(r"[A-Za-z_]\w*", variable):
            raise LaunchError(f"{name} line {number}: {line.strip()!r}: expected NAME=VALUE")
        found[variable] = value.strip()
    return found


def _check_ssh(host: str, port: int | None) -> None:
    done = _run([*ssh_argv(host, port), "true"], host)
    if done.returncode != 0:
        raise LaunchError(
            f"host {host}: ssh without a password failed: {done.stderr.strip()}"
            " (--no_ssh_check leaves this test out)"
        )


def _address_of(host: str, port: int | None) -> str:
    name = host.rpartition("@")[2].strip("[]")
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        pass
    done = _run([*ssh_argv(host, port), "hostname -I"], host)
    addresses = done.stdout.split()
    if done.returncode != 0 or not addresses:
        raise LaunchError(
            f"host {host}: its address could not be found ({done.stderr.strip() or 'no answer'});"
            " give it with --master_addr"
        )
    return addresses[0]


def _run(argv: list[str], host: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    except subprocess.TimeoutExpired:
        raise LaunchError(f"host {host}: ssh did not answer within 60 s") from None
