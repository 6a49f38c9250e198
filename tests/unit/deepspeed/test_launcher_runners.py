"""The command line that each launcher of many machines renders."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from deepspeed.launcher import runners
from deepspeed.launcher.errors import LaunchError
from deepspeed.launcher.local import Program, decode_world
from deepspeed.launcher.runners import ClusterJob

JOB = ClusterJob(
    world={"w0": [0, 1, 2], "w1": [0]},
    master_addr="10.0.0.1",
    master_port=2950,
    program=Program("train.py", ("--text", "a 'b' %n $HOME")),
    folder=Path("/data/my runs"),
    exports={"NCCL_DEBUG": "INFO, more"},
)
EVEN = replace(JOB, world={"w0": [0, 1], "w1": [0, 1]})
BY_MPI = [runners.OpenMpi, runners.Mpich, runners.IntelMpi, runners.Mvapich, runners.Slurm]


def node_line(command):
    """What a login shell makes of the last word of a command."""
    return shlex.split(command.argv[-1].replace("%%", "%"))


@pytest.mark.parametrize("kind", [runners.Ssh, runners.Pdsh])
def test_each_machine_learns_its_place_and_gets_every_argument_unharmed(kind):
    first, second = kind().commands(JOB)
    words = node_line(second)
    assert words[:2] == ["export", "NCCL_DEBUG=INFO, more;"]
    assert words[2:6] == ["cd", "/data/my runs", "&&", "exec"]
    assert words[6:10] == [sys.executable, "-u", "-m", "deepspeed.launcher.local"]
    assert {"--node_rank=1", "--master_addr=10.0.0.1", "--master_port=2950"} <= set(words)
    assert words[-3:] == ["train.py", "--text", "a 'b' %n $HOME"]
    (world,) = (word for word in words if word.startswith("--world_info="))
    assert decode_world(world.partition("=")[2]) == JOB.world
    assert "--node_rank=0" in node_line(first)


def test_pdsh_leaves_no_percent_to_be_replaced():
    (command, _) = runners.Pdsh().commands(replace(JOB, ssh_port=77))
    assert command.argv[:4] == ["pdsh", "-S", "-w", "w0"]
    assert "%%n" in command.argv[-1]
    assert command.environ == {"PDSH_RCMD_TYPE": "ssh", "PDSH_SSH_ARGS_APPEND": "-p 77"}


def test_ssh_takes_users_ports_addresses_and_extra_arguments():
    job = replace(JOB, world={"ann@[fe80::1]": [0]}, ssh_port=77, launcher_args=("-i", "key"))
    (command,) = runners.Ssh().commands(job)
    assert command.argv[1:-1] == [
        *("-n", "-o", "BatchMode=yes", "-p", "77", "-l", "ann", "-i", "key", "fe80::1")
    ]


def test_virtual_environment_is_entered_on_each_machine():
    (command, _) = runners.Ssh().commands(replace(JOB, venv_script="/venv/bin/activate"))
    assert " && . /venv/bin/activate && exec " in command.argv[-1]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (runners.OpenMpi, "mpirun -n 4 --host w0:3,w1:1 --map-by slot --bind-to none"),
        (runners.Mpich, "-hosts w0:3,w1:1 -n 4"),
        (runners.Mvapich, "-hosts w0:3,w1:1 -n 4"),
        (runners.IntelMpi, "-host w0 -n 3"),
        (runners.IntelMpi, "-host w1 -n 1"),
    ],
)
def test_uneven_slots_become_the_right_number_of_tasks(kind, words):
    (command,) = kind().commands(JOB)
    assert words in " ".join(command.argv)
    assert "--ranks=3,1" in command.argv


def test_slurm_counts_tasks_of_the_filter_and_refuses_uneven_ones():
    (command,) = runners.Slurm().commands(EVEN)
    line = " ".join(command.argv)
    assert "--nodes 2 --nodelist w0,w1 --ntasks 4 --ntasks-per-node 2" in line
    with pytest.raises(LaunchError, match="w0:3, w1:1"):
        runners.Slurm().commands(JOB)


@pytest.mark.parametrize("kind", BY_MPI)
def test_variables_travel_by_the_environment_of_the_launching_program(kind):
    (command,) = kind().commands(EVEN)
    assert command.environ["NCCL_DEBUG"] == "INFO, more"
    assert command.environ["MASTER_ADDR"] == "10.0.0.1"
    assert not any("INFO" in word for word in command.argv)
    assert command.argv[-3:] == ["train.py", "--text", "a 'b' %n $HOME"]


@pytest.mark.parametrize("kind", BY_MPI)
def test_chosen_slots_are_passed_on_or_refused(kind):
    (command,) = kind().commands(replace(JOB, world={"w0": [1, 3], "w1": [1, 3]}))
    assert command.environ["CUDA_VISIBLE_DEVICES"] == "1,3"
    with pytest.raises(LaunchError, match="other slots on each host"):
        kind().commands(replace(JOB, world={"w0": [0, 1], "w1": [1, 2]}))


@pytest.mark.parametrize("kind", BY_MPI)
@pytest.mark.parametrize("host", ["ann@w0", "fe80::1"])
def test_hosts_that_a_launcher_cannot_name_are_refused(kind, host):
    with pytest.raises(LaunchError, match="use --launcher ssh"):
        kind().commands(replace(JOB, world={host: [0]}))


def test_pdsh_refuses_ipv6_addresses():
    with pytest.raises(LaunchError, match="use --launcher ssh"):
        runners.Pdsh().commands(replace(JOB, world={"::1": [0]}))
