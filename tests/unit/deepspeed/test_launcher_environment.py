"""Finding a process's place in its job from the variables of its starter."""

import pytest

from deepspeed.environment import (
    EnvironmentFault,
    discover_placement,
    first_host,
    given_master_port,
    visible_devices,
)
from deepspeed.launcher.rank import variables

STARTERS = {
    "deepspeed": {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
    "Open MPI": {
        **{"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"},
        **{"OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
    },
    "MVAPICH": {
        **{"MV2_COMM_WORLD_RANK": "3", "MV2_COMM_WORLD_SIZE": "4"},
        **{"MV2_COMM_WORLD_LOCAL_RANK": "1", "MV2_COMM_WORLD_LOCAL_SIZE": "2"},
    },
    "Slurm": {
        **{"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "1"},
        **{"SLURM_STEP_TASKS_PER_NODE": "2(x2)", "SLURM_NODEID": "1"},
    },
    "MPICH": {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"},
}


@pytest.mark.parametrize("starter", STARTERS)
def test_each_starter_is_understood(starter):
    place = discover_placement(STARTERS[starter] | {"MASTER_ADDR": "h", "MASTER_PORT": "29"})
    found = (place.rank, place.world_size, place.local_rank, place.local_world_size)
    assert found == (3, 4, 1, 2)
    assert (place.master_addr, place.master_port) == ("h", 29)


def test_a_process_started_alone_has_no_place():
    assert discover_placement({}) is None


def test_the_batch_script_of_slurm_is_no_rank():
    assert discover_placement({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}) is None


def test_ranks_on_one_machine_need_no_address():
    place = discover_placement(STARTERS["MPICH"] | {"MPI_LOCALNRANKS": "4"})
    assert place.master_addr == "127.0.0.1"


def test_slurm_names_the_first_machine():
    place = discover_placement(STARTERS["Slurm"] | {"SLURM_STEP_NODELIST": "gpu[07-09,12]-ib"})
    assert place.master_addr == "gpu07-ib"


@pytest.mark.parametrize(
    ("nodes", "first"), [("a", "a"), ("a,b", "a"), ("n[3,5],m", "n3"), ("", None)]
)
def test_first_host_of_a_list(nodes, first):
    assert first_host(nodes) == first


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK=x: must be a whole number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 and WORLD_SIZE=2"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "LOCAL_RANK is not set"),
    ],
)
def test_contradictions_are_named(environ, message):
    with pytest.raises(EnvironmentFault, match=message):
        discover_placement(environ)


def test_master_port_of_the_environment():
    assert given_master_port({}) is None
    assert given_master_port({"MASTER_PORT": "77"}) == 77
    with pytest.raises(EnvironmentFault, match="MASTER_PORT=0"):
        given_master_port({"MASTER_PORT": "0"})


def test_a_negative_device_hides_those_that_follow():
    found = visible_devices({"CUDA_VISIBLE_DEVICES": "1, 0,-1,2"})
    assert found == ("CUDA_VISIBLE_DEVICES", ["1", "0"])


def test_a_rank_of_mpi_gets_the_usual_variables():
    place = discover_placement(STARTERS["Open MPI"])
    found = variables(place, [3, 1], threads=4)
    assert found["RANK"] == "3"
    assert found["LOCAL_RANK"] == "1"
    assert found["OMP_NUM_THREADS"] == "4"
    assert (found["CROSS_RANK"], found["CROSS_SIZE"]) == ("1", "2")
