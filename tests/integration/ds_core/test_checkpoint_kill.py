"""A save killed at any instant leaves the earlier checkpoint loadable."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
"""A kill loses nothing that the kernel has, so the quickest file system will do."""

HARNESS = Path(__file__).parent / "kill_saves.py"


@pytest.fixture
def folder(tmp_path):
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else tmp_path) as name:
        yield Path(name)


def harness(*arguments: object) -> dict[str, int]:
    command = [sys.executable, str(HARNESS), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    result: dict[str, int] = json.loads(done.stdout)
    return result


@pytest.mark.slow
def test_a_kill_at_200_random_instants_loses_nothing(folder):
    found = harness(folder, "random", 200)
    assert found["earlier"] > 10
    assert found["later"] > 10


@pytest.mark.parametrize("kind", ["new tag", "same tag", "asynchronous"])
def test_a_kill_before_any_call_to_the_file_system_loses_nothing(folder, kind):
    found = harness(folder, kind)
    assert found["calls"] > 15
    assert min(found["earlier"], found["later"]) > 0
