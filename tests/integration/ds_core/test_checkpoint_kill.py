"""A save killed at any instant leaves the earlier checkpoint loadable."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HARNESS = Path(__file__).parent / "kill_saves.py"


def harness(*arguments: object) -> dict[str, int]:
    command = [sys.executable, str(HARNESS), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    result: dict[str, int] = json.loads(done.stdout)
    return result


@pytest.mark.slow
def test_a_kill_at_200_random_instants_loses_nothing(tmp_path):
    found = harness(tmp_path, "random", 200)
    assert found["earlier"] > 10
    assert found["later"] > 10


@pytest.mark.parametrize("kind", ["new tag", "same tag", "asynchronous"])
def test_a_kill_before_any_call_to_the_file_system_loses_nothing(tmp_path, kind):
    found = harness(tmp_path, kind)
    assert found["calls"] > 15
    assert min(found["earlier"], found["later"]) > 0
