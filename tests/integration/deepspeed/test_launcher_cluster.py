"""Jobs on many machines, played on this one by an `ssh` that runs its command here."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

SSH = """#!/bin/sh
echo "$@" >> "$OUT/ssh.log"
for word; do last=$word; done
exec sh -c "$last"
"""
TELL = """
import json, os, pathlib, sys
told = {"argv": sys.argv[1:], "environ": dict(os.environ), "folder": os.getcwd()}
pathlib.Path(os.environ["OUT"], os.environ["RANK"]).write_text(json.dumps(told))
"""
WAIT = """
import os, pathlib, subprocess, sys, time
out, rank = pathlib.Path(os.environ["OUT"]), os.environ["RANK"]
worker = subprocess.Popen(["sleep", "600"], start_new_session=True)
(out / f"pids{rank}").write_text(f"{os.getpid()} {worker.pid}")
while not all((out / f"pids{other}").exists() for other in range(3)): time.sleep(0.02)
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A folder with a hostfile of two hosts, three slots, and the `ssh` of the test."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "ssh").write_text(SSH)
    (programs / "ssh").chmod(0o755)
    (tmp_path / "hosts").write_text("w0 slots=2\nann@w1 slots=1\n")
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("OUT", str(tmp_path))
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    with socket.socket() as free:
        free.bind(("", 0))
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return tmp_path


def start(cluster, code, *options, args=()):
    (cluster / "script.py").write_text(code)
    base = [sys.executable, "-m", "deepspeed.launcher.cli", "--hostfile", "hosts"]
    launcher = ["--launcher", "ssh", "--master_addr", "127.0.0.1"]
    return subprocess.Popen(
        [*base, *launcher, *options, "script.py", *args],
        **{"cwd": cluster, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE},
    )


def finish(job, seconds=30):
    out, err = job.communicate(timeout=seconds)
    return job.returncode, out, err


def told(cluster, rank):
    return json.loads((cluster / str(rank)).read_text())


def pids(cluster):
    return [int(p) for rank in range(3) for p in (cluster / f"pids{rank}").read_text().split()]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(true, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def all_started(cluster):
    return all((cluster / f"pids{rank}").exists() for rank in range(3))


def test_ranks_of_all_machines_know_their_place(cluster):
    (cluster / ".deepspeed_env").write_text("FROM_FILE=a, b\n")
    code, _, err = finish(start(cluster, TELL, "--ssh_port=77", args=["%n", "a 'b'"]))
    assert code == 0, err
    places = [
        tuple(told(cluster, rank)["environ"][name] for name in ("LOCAL_RANK", "CROSS_RANK"))
        for rank in range(3)
    ]
    assert places == [("0", "0"), ("1", "0"), ("0", "1")]
    last = told(cluster, 2)
    expected = {"WORLD_SIZE": "3", "LOCAL_WORLD_SIZE": "1", "CROSS_SIZE": "2"}
    expected |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": os.environ["MASTER_PORT"],
        "FROM_FILE": "a, b",
    }
    assert expected.items() <= last["environ"].items()
    assert last["argv"] == ["--local_rank=0", "%n", "a 'b'"]
    assert last["folder"] == str(cluster)
    assert "-p 77 -l ann w1" in (cluster / "ssh.log").read_text()


def test_filters_choose_ranks_of_machines(cluster):
    code, _, err = finish(start(cluster, TELL, "--include", "w0:1@ann@w1", "--no_ssh_check"))
    assert code == 0, err
    assert told(cluster, 1)["environ"]["CROSS_RANK"] == "1"
    assert not (cluster / "2").exists()


def test_one_host_left_runs_here_unless_forced(cluster):
    assert finish(start(cluster, TELL, "--num_nodes=1"))[0] == 0
    assert not (cluster / "ssh.log").exists()
    assert finish(start(cluster, TELL, "--num_nodes=1", "--force_multi"))[0] == 0
    assert (cluster / "ssh.log").exists()


def test_a_dead_rank_ends_the_ranks_of_all_machines(cluster):
    job = start(cluster, WAIT + "if rank == '2': sys.exit('last words')\ntime.sleep(600)")
    code, _, err = finish(job, seconds=15)
    assert code == 1
    assert "host ann@w1 exited with code 1" in err.splitlines()[-1]
    assert "last words" in err
    wait_until(lambda: not any(map(alive, pids(cluster))))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_launcher_stops_all_machines(cluster, number):
    job = start(cluster, WAIT + "time.sleep(600)")
    wait_until(lambda: all_started(cluster))
    job.send_signal(number)
    finish(job, seconds=15)
    wait_until(lambda: not any(map(alive, pids(cluster))))


def test_machines_can_be_started_one_by_one(cluster):
    jobs = [start(cluster, TELL, "--no_ssh", f"--node_rank={node}") for node in (0, 1)]
    assert [finish(job)[0] for job in jobs] == [0, 0]
    assert told(cluster, 2)["environ"]["CROSS_RANK"] == "1"
    assert not (cluster / "ssh.log").exists()


def test_equal_machines_need_no_hostfile(cluster):
    base = [sys.executable, "-m", "deepspeed.launcher.cli", "--no_ssh", "--node_rank=1"]
    (cluster / "script.py").write_text(TELL)
    options = ["--num_nodes=2", "--num_gpus=2", "--master_addr=127.0.0.1"]
    subprocess.run([*base, *options, "script.py"], cwd=cluster, check=True, capture_output=True)
    assert told(cluster, 3)["environ"]["WORLD_SIZE"] == "4"


def test_a_launching_program_that_is_not_installed_is_named(cluster, monkeypatch):
    monkeypatch.setenv("PATH", str(cluster / "bin"))
    job = start(cluster, TELL, "--launcher", "slurm")
    code, _, err = finish(job)
    assert code == 2
    assert "--launcher slurm: no program 'srun' on this machine" in err


def test_an_unreachable_host_is_named(cluster):
    (cluster / "bin" / "ssh").write_text("#!/bin/sh\necho no route >&2\nexit 255\n")
    code, _, err = finish(start(cluster, TELL))
    assert code == 2
    assert "host w0: ssh without a password failed: no route" in err


def test_a_command_runs_on_every_host(cluster):
    base = [sys.executable, "-m", "deepspeed.launcher.ssh", "-f", "hosts"]
    done = subprocess.run(
        [*base, "echo $((1 + 1)); exit 3"],
        **{"cwd": cluster, "capture_output": True, "text": True, "check": False},
    )
    assert done.returncode == 3
    assert done.stdout == "w0: 2\nann@w1: 2\n"
    assert "ann@w1: exit code 3" in done.stderr
