"""The command `deepspeed` on one machine: what ranks get, and how they end together."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ENVIRON = {k: v for k, v in os.environ.items() if not k.startswith(("MASTER_", "OMP_", "RANK"))}
ENVIRON |= {"DS_ACCELERATOR": "cpu"}
TELL = """
import json, os, pathlib, sys
cores = sorted(os.sched_getaffinity(0))
told = {"argv": sys.argv[1:], "environ": dict(os.environ), "cores": cores}
pathlib.Path(os.environ["OUT"], os.environ["RANK"]).write_text(json.dumps(told))
"""
# each rank starts a worker, and a grandchild that left its session; their pids go to files
FAMILY = """
import os, pathlib, subprocess, sys, time
out, rank = pathlib.Path(os.environ["OUT"]), os.environ["RANK"]
worker = subprocess.Popen(["sleep", "600"])
line = 'setsid sh -c "sleep 600 & echo \\\\$! >> %s; sleep 600" & echo $!' % (out / f"far{rank}")
subprocess.run(["sh", "-c", line], stdout=subprocess.DEVNULL)
while not (out / f"far{rank}").exists(): time.sleep(0.01)
(out / f"near{rank}").write_text(f"{os.getpid()}\\n{worker.pid}\\n")
"""
COLLECT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.tensor([float(dist.get_rank())])
dist.all_reduce(value)
dist.destroy_process_group()
assert value.item() == 1.0
"""


def command(tmp_path, code, *options, args=()):
    script = tmp_path / "script.py"
    script.write_text(code)
    return [sys.executable, "-m", "deepspeed.launcher.cli", *options, str(script), *args]


def run(tmp_path, code, *options, args=(), **environ):
    return subprocess.run(
        command(tmp_path, code, *options, args=args),
        env=ENVIRON | {"OUT": str(tmp_path)} | environ,
        **{"capture_output": True, "text": True, "check": False, "timeout": 60},
    )


def start(tmp_path, code, *options, **environ):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(
        command(tmp_path, code, *options),
        env=ENVIRON | {"OUT": str(tmp_path)} | environ,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # also below nohup
        **pipes,
    )


def told(tmp_path, rank):
    return json.loads((tmp_path / str(rank)).read_text())


def family(tmp_path, ranks=2):
    """The pids of all ranks, their workers and far descendants, once all have started."""
    names = [f"{kind}{rank}" for kind in ("near", "far") for rank in range(ranks)]
    wait_until(lambda: all((tmp_path / name).exists() for name in names))
    return [int(pid) for name in names for pid in (tmp_path / name).read_text().split()]


def wait_until(true, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def all_gone(pids):
    return not any(map(alive, pids))


def test_ranks_get_their_place_and_the_script_its_arguments(tmp_path):
    done = run(tmp_path, TELL, "--num_gpus", "2", args=("--lr", "a 'b' $c", "--num_gpus=7"))
    assert done.returncode == 0, done.stderr
    first, second = told(tmp_path, 0), told(tmp_path, 1)
    assert second["argv"] == ["--local_rank=1", "--lr", "a 'b' $c", "--num_gpus=7"]
    expected = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_SIZE": "2"}
    expected |= {"RANK": "1", "LOCAL_RANK": "1", "CROSS_RANK": "0", "CROSS_SIZE": "1"}
    expected |= {"MASTER_ADDR": "127.0.0.1"}
    assert expected.items() <= second["environ"].items()
    assert first["environ"]["MASTER_PORT"] == second["environ"]["MASTER_PORT"]
    assert int(first["environ"]["OMP_NUM_THREADS"]) >= 1
    assert "--num_gpus after" in done.stderr  # the hint


def test_a_thread_count_of_the_user_stays(tmp_path):
    run(tmp_path, TELL, "--no_local_rank", OMP_NUM_THREADS="5")
    assert told(tmp_path, 0)["environ"]["OMP_NUM_THREADS"] == "5"
    assert told(tmp_path, 0)["argv"] == []


def test_a_module_and_a_program_can_be_started(tmp_path):
    (tmp_path / "told_by_module.py").write_text(TELL)
    base = [sys.executable, "-m", "deepspeed.launcher.cli"]
    environ = ENVIRON | {"OUT": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    subprocess.run([*base, "--module", "told_by_module", "x"], env=environ, check=True)
    assert told(tmp_path, 0)["argv"] == ["--local_rank=0", "x"]
    done = subprocess.run(
        [*base, "--no_python", "--num_gpus=2", "echo", "hi"],
        **{"env": environ, "check": True, "capture_output": True, "text": True},
    )
    assert sorted(done.stdout.splitlines()) == ["--local_rank=0 hi", "--local_rank=1 hi"]


def test_ranks_are_bound_to_cores_of_their_own(tmp_path):
    usable = sorted(os.sched_getaffinity(0))[:2]
    cores = ",".join(map(str, usable))
    done = run(tmp_path, TELL, f"--num_gpus={len(usable)}", f"--bind_core_list={cores}")
    assert done.returncode == 0, done.stderr
    assert [told(tmp_path, rank)["cores"] for rank in range(len(usable))] == [[c] for c in usable]
    assert told(tmp_path, 0)["environ"]["OMP_NUM_THREADS"] == "1"


def test_each_rank_can_log_to_a_file(tmp_path):
    code = """import os, pathlib, sys, time
out, rank = pathlib.Path(os.environ["OUT"]), int(os.environ["RANK"])
print("rank", rank, flush=True)
(out / f"said{rank}").touch()
while not (out / "said0").exists(): time.sleep(0.02)  # a dead rank ends the others
sys.exit(rank)"""
    done = run(tmp_path, code, "--num_gpus=2", f"--enable_each_rank_log={tmp_path}/logs")
    (log,) = (tmp_path / "logs").glob("*_rank0.log")
    assert log.read_text() == "rank 0\n"
    assert done.stdout == ""
    assert "  | rank 1" in done.stderr


def test_a_pid_file_lies_there_while_the_job_runs(tmp_path):
    code = f"import pathlib; print(pathlib.Path('/tmp/{os.getpid()}.ds').read_text())"
    done = run(tmp_path, code, "--save_pid")
    assert done.stdout.strip().isdecimal(), done.stderr
    assert not Path(f"/tmp/{os.getpid()}.ds").exists()


def test_two_jobs_at_once_meet_on_ports_of_their_own(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    jobs = [start(folder, TELL + COLLECT, "--num_gpus=2") for folder in folders]
    for job in jobs:
        _, err = job.communicate(timeout=60)
        assert job.returncode == 0, err
    ports = {told(folder, rank)["environ"]["MASTER_PORT"] for folder in folders for rank in (0, 1)}
    assert len(ports) == 2


@pytest.mark.parametrize("way", ["--master_port", "MASTER_PORT"])
def test_a_given_port_is_used_or_refused_by_name(tmp_path, way):
    with socket.socket() as busy:
        busy.bind(("", 0))
        port = str(busy.getsockname()[1])
        busy.listen()
        options = [way, port] if way.startswith("-") else []
        environ = {} if options else {way: port}
        refused = run(tmp_path, TELL, *options, **environ)
    assert refused.returncode == 2
    assert f"{way} {port}: another program on this machine listens on it" in refused.stderr
    assert not (tmp_path / "0").exists()
    assert run(tmp_path, TELL, *options, **environ).returncode == 0
    assert told(tmp_path, 0)["environ"]["MASTER_PORT"] == port


def test_one_port_given_to_two_jobs_is_refused_to_the_second(tmp_path):
    with socket.socket() as free:
        free.bind(("", 0))
        port = str(free.getsockname()[1])
    job = start(tmp_path, FAMILY + "time.sleep(600)", f"--master_port={port}")
    family(tmp_path, ranks=1)
    second = run(tmp_path, TELL, f"--master_port={port}")
    job.terminate()
    job.communicate(timeout=30)
    assert second.returncode == 2
    assert f"--master_port {port}: another job on this machine holds it" in second.stderr


DEATHS = {
    "sys.exit(3)": (3, "rank 1 exited with code 3"),
    "raise ValueError('boom')": (1, "rank 1 exited with code 1: ValueError: boom"),
    "os.kill(os.getpid(), 9)": (137, "rank 1 was killed by SIGKILL"),
}


@pytest.mark.parametrize("death", DEATHS)
def test_a_dead_rank_takes_all_descendants_with_it(tmp_path, death):
    code, words = DEATHS[death]
    wait = "while not (out / 'die').exists(): time.sleep(0.02)\n"
    ends = f"{wait}if rank == '1':\n    print('last words'); {death}\ntime.sleep(600)"
    bystander = subprocess.Popen(["sleep", "600"])
    job = start(tmp_path, FAMILY + ends, "--num_gpus=2")
    pids = family(tmp_path)
    assert all(map(alive, pids))
    (tmp_path / "die").touch()
    _, err = job.communicate(timeout=10)
    assert job.returncode == code
    assert all_gone(pids)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()
    assert words in err.splitlines()[-1]
    assert ("  | last words" in err) != ("boom" in words)  # not said again after its traceback


def test_a_rank_that_ignores_sigterm_is_ended_too(tmp_path):
    deaf = "import signal; signal.signal(15, signal.SIG_IGN)\n"
    ends = "while not (out / 'near1').exists(): time.sleep(0.02)\n"
    ends += "if rank == '0': sys.exit(5)\ntime.sleep(600)"
    done = run(tmp_path, deaf + FAMILY + ends, "--num_gpus=2")
    assert done.returncode == 5
    assert all_gone(family(tmp_path))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_signals_reach_the_ranks(tmp_path, number, code):
    heard = "import signal\ndef hear(number, _): (out / f'heard{rank}').touch(); sys.exit(9)\n"
    heard += f"signal.signal({int(number)}, hear)\n"
    job = start(tmp_path, heard + FAMILY + "time.sleep(600)", "--num_gpus=2")
    pids = family(tmp_path)
    job.send_signal(number)
    job.communicate(timeout=10)
    assert job.returncode == code
    assert (tmp_path / "heard0").exists()
    assert (tmp_path / "heard1").exists()
    assert all_gone(pids)


def test_ranks_that_end_well_on_a_signal_end_the_job_well(tmp_path):
    heard = "import signal, sys\nsignal.signal(15, lambda *_: sys.exit(0))\n"
    job = start(tmp_path, heard + FAMILY + "time.sleep(600)", "--num_gpus=2")
    pids = family(tmp_path)
    job.terminate()
    job.communicate(timeout=10)
    assert job.returncode == 0
    assert all_gone(pids)


def test_a_second_signal_does_not_wait(tmp_path):
    deaf = "import signal; signal.signal(15, signal.SIG_IGN)\n"
    job = start(tmp_path, deaf + FAMILY + "time.sleep(600)", "--num_gpus=2")
    pids = family(tmp_path)
    for _ in range(2):
        job.terminate()
        time.sleep(0.3)
    job.communicate(timeout=5)
    assert all_gone(pids)


@pytest.mark.parametrize("victim", ["launcher", "keeper"])
def test_killing_the_launcher_leaves_no_orphans(tmp_path, victim):
    job = start(tmp_path, FAMILY + "time.sleep(600)", "--num_gpus=2")
    pids = family(tmp_path)
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
    os.kill(job.pid if victim == "launcher" else int(children[0]), signal.SIGKILL)
    job.communicate(timeout=10)
    assert job.returncode in (-9, 137)
    wait_until(lambda: all_gone(pids), seconds=10)


def test_what_a_job_leaves_behind_on_purpose_lives_on(tmp_path):
    code = "import os, subprocess\n"
    code += "p = subprocess.Popen(['sleep', '600'], stdout=-3, stderr=-3)\nprint(p.pid)"
    done = run(tmp_path, code)
    assert done.returncode == 0
    assert alive(int(done.stdout))
    os.kill(int(done.stdout), signal.SIGKILL)


def test_output_that_nobody_reads_does_not_hold_up_a_stop(tmp_path):
    flood = "(out / 'near0').touch()\nwhile True: print('x' * 1000)"
    job = start(tmp_path, FAMILY.replace("(out / f", "0 and (out / f") + flood)
    wait_until((tmp_path / "near0").exists)
    time.sleep(0.5)
    job.terminate()
    assert job.wait(timeout=10) == 143
    job.stdout.close()
    job.stderr.close()


def test_a_closed_reader_ends_the_job(tmp_path):
    line = " ".join(command(tmp_path, "while True: print('y')", "-q")) + " | head -n 1"
    done = subprocess.run(
        line, shell=True, env=ENVIRON, capture_output=True, text=True, timeout=20, check=False
    )
    assert done.stdout == "y\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--hostfile", "/no/such/file"], "hostfile /no/such/file: no such file"),
        (["--include", "localhost:9"], "localhost has no slot 9"),
        (["--launcher", "x", "--num_nodes", "2"], "name the hosts with --hostfile"),
        (["--no_python", "--module"], "--module and --no_python"),
    ],
)
def test_what_cannot_be_started_is_refused_before_anything_starts(tmp_path, options, message):
    done = run(tmp_path, TELL, *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "0").exists()


def test_a_script_that_refuses_the_local_rank_is_told_what_to_do(tmp_path):
    code = "import argparse; argparse.ArgumentParser().parse_args()"
    assert "start it with --no_local_rank" in run(tmp_path, code, "--num_gpus", "1").stderr
    assert run(tmp_path, code, "--num_gpus", "1", "--no_local_rank").returncode == 0


def test_a_program_that_is_not_there_is_named(tmp_path):
    base = [sys.executable, "-m", "deepspeed.launcher.cli", "--num_gpus=2", "--no_python"]
    done = subprocess.run(
        [*base, "/no/such/program"], env=ENVIRON, capture_output=True, text=True, check=False
    )
    assert done.returncode == 127
    assert "cannot start rank 0: /no/such/program: No such file" in done.stderr


def test_a_failure_that_stands_on_the_terminal_is_not_said_again(tmp_path):
    done = run(tmp_path, "def f(): raise ValueError('boom')\nf()", "--num_gpus", "1")
    assert done.stderr.count("boom") == 3  # the source line, the exception, the verdict
    assert done.stderr.endswith("deepspeed: rank 0 exited with code 1: ValueError: boom\n")


def test_a_failure_that_other_output_has_pushed_away_is_said_again(tmp_path):
    code = """import os, pathlib, signal, sys, time
deaf = pathlib.Path(os.environ["OUT"], "deaf")
if os.environ["RANK"] == "0":
    while not deaf.exists(): time.sleep(0.02)
    raise ValueError("boom")
signal.signal(15, lambda *_: [print("noise", line, file=sys.stderr) for line in range(60)])
deaf.touch()
time.sleep(600)
"""
    err = run(tmp_path, code, "--num_gpus=2").stderr
    assert "  | ValueError: boom" in err
    assert err.endswith("deepspeed: rank 0 exited with code 1: ValueError: boom\n")


def test_a_script_that_is_not_there_is_named_before_ranks_start(tmp_path):
    argv = command(tmp_path, TELL, "--num_gpus=2")
    argv[-1] = str(tmp_path / "scirpt.py")
    done = subprocess.run(argv, env=ENVIRON, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"scirpt.py: no such script, did you mean '{tmp_path}/script.py'?" in done.stderr
    assert "Errno 2" not in done.stderr
