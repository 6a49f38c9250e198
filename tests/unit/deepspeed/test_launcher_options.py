"""The command line, the devices and cores behind it, and the files it reads."""

import pytest

import deepspeed
from deepspeed.launcher import cluster, cores, devices, options
from deepspeed.launcher.cli import local_slots
from deepspeed.launcher.devices import LocalDevices
from deepspeed.launcher.errors import LaunchError

CPU = LocalDevices("cpu", "", {0: "0"})


def test_what_follows_the_script_belongs_to_it():
    given = options.parse(["--num_gpus", "2", "train.py", "--num_gpus", "4", "--lr=1", "-q"])
    assert given.num_gpus == 2
    assert given.user_args == ("--num_gpus", "4", "--lr=1", "-q")
    assert options.misplaced(given) == ["--num_gpus"]


def test_both_names_of_the_number_of_devices():
    assert options.parse(["--num_accelerators=3", "t.py"]).num_gpus == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--module", "--no_python"], "a module needs python"),
        (["--no_ssh"], "--node_rank"),
        (["--num_gpus", "0"], "--num_gpus 0: must be at least 1"),
        (["--num_nodes", "-3"], "--num_nodes -3"),
        (["--master_port", "70000"], "1..65535"),
        (["--autotuning", "tune"], "--autotuning: tuning is not part"),
        (["--elastic_training"], "--elastic_training: elastic"),
    ],
)
def test_impossible_options_are_refused_by_name(arguments, message):
    with pytest.raises(LaunchError, match=message):
        options.parse([*arguments, "train.py"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name the script to start"),
        (["--num_gpus", "2"], "e.g. deepspeed --num_gpus 2 train.py"),
        (["--num_gps", "2", "a.py"], "--num_gps, did you mean '--num_gpus'?"),
    ],
    ids=["nothing", "no_script", "misspelt"],
)
def test_a_wrong_command_line_is_answered_in_its_own_words(arguments, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        options.parse(arguments)
    assert message in capsys.readouterr().err


def test_cores_take_as_many_ranks_as_asked():
    assert local_slots(options.parse(["t.py"]), CPU) == [0]
    assert local_slots(options.parse(["--num_gpus=4", "t.py"]), CPU) == [0, 1, 2, 3]


def test_more_ranks_than_cores_are_told(caplog, monkeypatch):
    monkeypatch.setattr("deepspeed.launcher.cli.usable_cores", lambda: [0, 1])
    local_slots(options.parse(["--num_gpus=2", "t.py"]), CPU)
    assert not caplog.records
    assert len(local_slots(options.parse(["--num_gpus=99", "t.py"]), CPU)) == 99
    assert "--num_gpus 99: no GPU is used and this machine has 2 core(s)" in caplog.text


def test_the_version_is_told(capsys):
    with pytest.raises(SystemExit, match="0"):
        options.parse(["--version"])
    assert capsys.readouterr().out == f"deepspeed {deepspeed.__version__}\n"


def test_devices_that_the_user_hid_stay_hidden(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    found = devices.find_devices()
    assert found.names == {4: "4", 6: "6"}
    assert found.visible([6]) == {"CUDA_VISIBLE_DEVICES": "6"}


def test_devices_named_by_unique_ids_are_counted_from_zero(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-aa,MIG-bb")
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    found = devices.find_devices()
    assert found.visible([1]) == {"CUDA_VISIBLE_DEVICES": "MIG-bb"}


def test_no_visible_device_means_the_cpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("DS_ACCELERATOR", "cuda")
    assert devices.find_devices().kind == "cpu"


@pytest.mark.parametrize(
    ("count", "ranks", "shares"),
    [(4, 2, [[0, 1], [2, 3]]), (5, 2, [[0, 1], [2, 3]]), (3, 3, [[0], [1], [2]])],
)
def test_cores_are_shared_in_neighbouring_runs(count, ranks, shares):
    assert cores.share(range(count), ranks) == shares


def test_more_ranks_than_cores_cannot_be_bound():
    with pytest.raises(LaunchError, match="2 cores cannot serve 3 ranks"):
        cores.share([0, 1], 3)


def test_a_core_that_is_not_there_is_refused():
    with pytest.raises(LaunchError, match="--bind_core_list 0,99999: this machine has no usable"):
        cores.cores_to_bind("0,99999")


def test_threads_never_fall_to_zero():
    assert cores.threads_a_rank(1) >= 1
    assert cores.threads_a_rank(10_000) == 1


def test_env_file_of_the_folder_wins_over_the_home(tmp_path):
    home, here = tmp_path / "home", tmp_path / "here"
    for folder, text in ((home, "A=1\nB=x=y z\n"), (here, "# mine\n\nexport A=2\n")):
        folder.mkdir()
        (folder / ".deepspeed_env").write_text(text)
    found = cluster.read_env_files([home, here], name=".deepspeed_env")
    assert found == {"A": "2", "B": "x=y z"}


@pytest.mark.parametrize("line", ["A", "1A=2", "A B=1", "=3"])
def test_bad_line_of_an_env_file_is_shown(line):
    with pytest.raises(LaunchError, match=r"f line 2: .*: expected NAME=VALUE"):
        cluster.parse_env_file(f"X=1\n{line}\n", name="f")


def test_unknown_launcher_lists_the_known_ones():
    with pytest.raises(LaunchError, match=r"pdsh, ssh, .*slurm, did you mean 'openmpi'"):
        cluster.choose_runner("openmp")
