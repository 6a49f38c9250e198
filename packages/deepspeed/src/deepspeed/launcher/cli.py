"""The command `deepspeed`."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from deepspeed import environment
from deepspeed.launcher import hosts, options
from deepspeed.launcher.cluster import EXPORTED_PREFIXES, launch_cluster
from deepspeed.launcher.cores import usable_cores
from deepspeed.launcher.devices import LocalDevices, find_devices
from deepspeed.launcher.errors import LaunchError
from deepspeed.launcher.local import NodeJob, Program, rank_commands
from deepspeed.launcher.options import LaunchOptions
from deepspeed.launcher.ports import PortClaim
from deepspeed.launcher.supervise import supervise

logger = logging.getLogger(__name__)
_LOCAL = "localhost"


def main(
    arguments: Sequence[str] | None = None, *, prefixes: tuple[str, ...] = EXPORTED_PREFIXES
) -> int:
    """Start a job and wait for its end; returns the exit code.

    `prefixes` says which of our variables ranks on other machines get.
    """
    try:
        given = options.parse(sys.argv[1:] if arguments is None else arguments)
        _set_up_logging(given)
        for name in options.misplaced(given):
            logger.warning(
                "%s after %s is an argument of the script; to give it to deepspeed, write it"
                " before the script",
                name,
                given.user_script,
            )
        with _pid_file(given.save_pid):
            return launch(given, prefixes=prefixes)
    except (LaunchError, environment.EnvironmentFault) as error:
        sys.stderr.write(f"deepspeed: {error}\n")
        return 2


def launch(given: LaunchOptions, *, prefixes: tuple[str, ...] = EXPORTED_PREFIXES) -> int:
    """Run the job that the options describe."""
    required = given.hostfile != options.DEFAULT_HOSTFILE
    pool = hosts.read_hostfile(given.hostfile, required=required)
    if pool is None:
        if given.no_ssh:
            return _launch_one_of_many(given, _equal_machines(given))
        if given.num_nodes > 1 or given.force_multi:
            raise LaunchError(
                f"--num_nodes {given.num_nodes}: name the hosts with --hostfile"
                " (or start each machine with --no_ssh --node_rank)"
            )
        return _launch_here(given)
    world = hosts.select(
        hosts.all_slots(pool),
        include=given.include,
        exclude=given.exclude,
        num_nodes=given.num_nodes,
        num_gpus=given.num_gpus,
    )
    if given.no_ssh:
        return _launch_one_of_many(given, world)
    if len(world) > 1 or given.force_multi:
        return launch_cluster(given, world, prefixes=prefixes)
    return _run_here(given, world, find_devices())


def _launch_here(given: LaunchOptions) -> int:
    devices = find_devices()
    world = hosts.select(
        {_LOCAL: local_slots(given, devices)},
        include=given.include,
        exclude=given.exclude,
        num_gpus=given.num_gpus,
    )
    return _run_here(given, world, devices)


def _run_here(given: LaunchOptions, world: hosts.Slots, devices: LocalDevices) -> int:
    """The whole job lies on this machine."""
    port, origin = given.master_port, "--master_port"
    if port is None:
        port, origin = environment.given_master_port(), "MASTER_PORT"
    with PortClaim(port, origin=origin) as claim:
        job = node_job(given, world, 0, given.master_addr or "127.0.0.1", claim.port)
        commands = rank_commands(job, devices)
        logger.info(
            "%d rank(s) on this machine (%s), port %d", len(commands), devices.kind, claim.port
        )
        return supervise(commands)


def _equal_machines(given: LaunchOptions) -> hosts.Slots:
    """Without a hostfile all machines are like this one."""
    if given.num_nodes < 1:
        raise LaunchError("--no_ssh: say with --num_nodes how many machines there are")
    chosen = hosts.select(
        {_LOCAL: local_slots(given, find_devices())},
        include=given.include,
        exclude=given.exclude,
        num_gpus=given.num_gpus,
    )
    return {f"node-{node}": chosen[_LOCAL] for node in range(given.num_nodes)}


def _launch_one_of_many(given: LaunchOptions, world: hosts.Slots) -> int:
    if given.node_rank >= len(world):
        raise LaunchError(f"--node_rank {given.node_rank}: there are only {len(world)} machines")
    address = given.master_addr or environment.given_master_addr()
    if address is None:
        raise LaunchError("--no_ssh: give the first machine's address with --master_addr")
    port = given.master_port or environment.given_master_port() or options.DEFAULT_PORT
    commands = rank_commands(node_job(given, world, given.node_rank, address, port), find_devices())
    with PortClaim(port) if given.node_rank == 0 else contextlib.nullcontext():
        return supervise(commands)


def local_slots(given: LaunchOptions, devices: LocalDevices) -> list[int]:
    """The slots of this machine; cores take as many ranks as are asked for."""
    slots = list(devices.names)
    if devices.kind == "cpu":
        slots = list(range(max(len(slots), given.num_gpus)))
        usable = len(usable_cores())
        if given.num_gpus > usable:
            logger.warning(
                "--num_gpus %d: no GPU is used and this machine has %d core(s), which its"
                " processes will share",
                given.num_gpus,
                usable,
            )
    if not slots:
        raise LaunchError(f"no device of type {devices.kind} found on this machine")
    return slots


def node_job(
    given: LaunchOptions, world: hosts.Slots, node: int, address: str, port: int
) -> NodeJob:
    """One machine's part of the job."""
    program = Program(
        given.user_script,
        given.user_args,
        module=given.module,
        no_python=given.no_python,
        no_local_rank=given.no_local_rank,
    )
    return NodeJob(
        world=world,
        node=node,
        master_addr=address,
        master_port=port,
        program=program,
        log_dir=given.enable_each_rank_log,
        bind_cores=given.bind_cores_to_rank,
        core_list=given.bind_core_list,
    )


def _set_up_logging(given: LaunchOptions) -> None:
    level = "error" if given.quiet else given.log_level
    logging.basicConfig(format="deepspeed: %(message)s", level=level.upper())


@contextlib.contextmanager
def _pid_file(wanted: bool) -> Iterator[None]:
    """`/tmp/PARENT.ds` holds our pid while we run, for whoever started us."""
    if not wanted:
        yield
        return
    path = Path("/tmp") / f"{os.getppid()}.ds"
    path.write_text(str(os.getpid()))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
