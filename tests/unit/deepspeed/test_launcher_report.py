"""The report of what is installed, and the old names around the launcher."""

import importlib
import subprocess
import sys

import pytest

from deepspeed import env_report, git_version_info
from deepspeed.launcher import runner
from deepspeed.legacy import NotOffered

PROBES = """
import os, time
def good(): print("noise"); return [("engine", "io_uring", "kernel 6.1")]
def raises(): raise RuntimeError("no such kernel")
def dies(): os.kill(os.getpid(), 4)
"""


@pytest.fixture
def probes(tmp_path, monkeypatch):
    """A distribution that publishes three reports."""
    (tmp_path / "probes_of_test.py").write_text(PROBES)
    info = tmp_path / "probes_of_test-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: probes-of-test\nVersion: 1\n")
    lines = [f"t-{name} = probes_of_test:{name}" for name in ("good", "raises", "dies")]
    (info / "entry_points.txt").write_text("\n".join(["[deepspeed.reports]", *lines]))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("probes")
def test_a_probe_that_fails_or_dies_is_a_row():
    rows = env_report.native_rows()
    assert rows["t-good"] == [("engine", "io_uring", "kernel 6.1")]
    assert rows["t-raises"] == [("report", "failed", "exit code 1: RuntimeError: no such kernel")]
    assert rows["t-dies"] == [("report", "failed", "killed by signal 4: it wrote nothing")]


def test_report_names_packages_machine_and_native_paths(capsys):
    env_report.main()
    text = capsys.readouterr().out
    for word in ("torch", "deepspeed", "ds-core", "device", "shared memory", "Native paths"):
        assert word in text


def test_native_paths_can_be_left_out(capsys):
    assert env_report.cli_main(["--hide_operator_status"]) == 0
    assert "Native paths" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "module", ["deepspeed.launcher.cli", "deepspeed.env_report", "deepspeed.launcher.ssh"]
)
def test_commands_start_without_torch(module):
    code = f"import {module}, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_facts_of_the_installation():
    assert git_version_info.version.count(".") == 2
    assert git_version_info.installed_ops["async_io"] in (True, False)
    assert set(git_version_info.torch_info) >= {"version", "cuda_version", "hip_version"}
    assert isinstance(git_version_info.accelerator_name, str)


def test_launcher_as_programs_import_it():
    pool = runner.parse_inclusion_exclusion({"w0": 4, "w1": 2}, "w0:1,2", "")
    assert pool == {"w0": [1, 2]}
    assert runner.fetch_hostfile(runner.DLTS_HOSTFILE) is None
    assert runner.parse_resource_filter({"w0": [0, 1]}, exclude_str="w0:1") == {"w0": [0]}
    assert runner.parse_node_config("w0:0,2") == ("w0", [0, 2])
    assert runner.parse_node_config_list(["w0:1", "w1"]) == {"w0": [1], "w1": []}


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        ("deepspeed.constants", "TORCH_DISTRIBUTED_DEFAULT_PORT", 29500),
        ("deepspeed.constants", "CROSS_RANK", "CROSS_RANK"),
        ("deepspeed.constants", "CROSS_SIZE", "CROSS_SIZE"),
        ("deepspeed.launcher.constants", "SLURM_LAUNCHER", "slurm"),
    ],
)
def test_old_constants(module, name, value):
    assert getattr(importlib.import_module(module), name) == value


def test_old_runner_classes_say_what_to_use():
    module = importlib.import_module("deepspeed.launcher.multinode_runner")
    with pytest.raises(NotOffered, match=r"runners\.Pdsh"):
        module.PDSHRunner()


def test_variables_that_a_program_adds_are_passed_on(monkeypatch):
    seen = {}
    monkeypatch.setattr(runner.cli, "main", lambda args, *, prefixes: seen.update(p=prefixes) or 7)
    monkeypatch.setattr(runner, "EXPORT_ENVS", ["MY_"])
    with pytest.raises(SystemExit, match="7"):
        runner.main(["train.py"])
    assert seen["p"] == ("MY_",)


@pytest.mark.parametrize("words", ["deepspeed.config.command schema", "deepspeed.env_report"])
def test_a_reader_that_has_seen_enough_ends_a_command_in_silence(words):
    line = f"{sys.executable} -m {words} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
