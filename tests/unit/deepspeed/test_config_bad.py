"""Every row of the table of bad configurations gives exactly its messages, on every path."""

from __future__ import annotations

import subprocess
import sys

import pytest

import deepspeed
from deepspeed.config import ConfigFaults, load_config
from deepspeed.config.command import main
from unit.deepspeed.config_errors import PAGE, BadConfig, load_table, render_page

TABLE = load_table()
ids = [case.name for case in TABLE]

_OPTIMISED = """
import sys
from deepspeed.config import ConfigFaults, load_config
from unit.deepspeed.config_errors import load_table
for index, case in enumerate(load_table()):
    path = f"{sys.argv[1]}/{index}.json"
    open(path, "w").write(case.text)
    try:
        load_config(path, world_size=case.world_size)
    except ConfigFaults as error:
        if tuple(map(str, error.faults)) != case.faults:
            sys.exit(f"{case.name}: {error}")
    else:
        sys.exit(f"{case.name}: accepted")
print(__debug__)
"""


@pytest.fixture(params=TABLE, ids=ids)
def case(request) -> BadConfig:
    return request.param


def test_table_has_forty_cases_at_least() -> None:
    assert len(TABLE) >= 40
    assert len(set(ids)) == len(ids)


def test_bad_config_gives_its_messages(case: BadConfig, tmp_path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(case.text)
    with pytest.raises(ConfigFaults) as caught:
        load_config(path, world_size=case.world_size)
    assert tuple(str(fault) for fault in caught.value.faults) == case.faults
    assert all(fault in str(caught.value) for fault in case.faults)


def test_command_exits_with_one_and_prints_the_messages(case: BadConfig, tmp_path, capsys) -> None:
    path = tmp_path / "bad.json"
    path.write_text(case.text)
    assert main(["check", str(path), "--world-size", str(case.world_size)]) == 1
    assert all(fault in capsys.readouterr().err for fault in case.faults[:1])


def test_messages_are_the_same_without_asserts(tmp_path) -> None:
    command = [sys.executable, "-O", "-c", _OPTIMISED, str(tmp_path)]
    tests = str(PAGE.parents[1] / "tests")
    done = subprocess.run(command, capture_output=True, text=True, cwd=tests, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "False", "")


def test_docs_page_shows_the_table() -> None:
    assert PAGE.read_text() == render_page(), (
        "rewrite it: python tests/unit/deepspeed/config_errors.py"
    )


def test_the_error_of_the_page_is_there_under_its_name() -> None:
    assert issubclass(ConfigFaults, deepspeed.ConfigError)
