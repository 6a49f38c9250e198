"""Every code block of every page is true: programs run, configurations pass, commands exist."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from deepspeed.config import load_config
from integration.deepspeed.docs_pages import ROOT, Block, blocks, check_command, commands, pages
from support.ranks import run_ranks

ELSEWHERE = {
    "packages/ds-aio/README.md": "tests/unit/ds_aio/test_readme.py",
    "packages/ds-data/README.md": "tests/unit/ds_data/test_readme.py",
    "packages/ds-kernels/README.md": "tests/unit/ds_kernels/test_readme.py",
    "packages/ds-pipeline/README.md": "tests/unit/ds_pipeline/test_readme.py",
    "packages/ds-profiler/README.md": "tests/unit/ds_profiler/test_readme.py",
    "packages/ds-zero/README.md": "tests/integration/ds_zero/test_readme.py",
}
"""Pages whose Python is run beside their package, so that it is also run without the others."""

JSON_ELSEWHERE = {"docs/config-errors.md": "tests/unit/deepspeed/test_config_bad.py"}
"""Pages whose configurations are wrong on purpose."""

WALKED = "docs/getting-started.md"
"""The page whose commands are run too, each after the blocks before it."""

STARTED = ("deepspeed", "python", "ds_config", "ds_report", "zero_to_fp32")
KNOWN = ("python", "json", "console", "bash", "diff", "indented", "text", "")

ALL = [block for page in pages() for block in blocks(page)]


def of(*languages: str) -> list[object]:
    chosen = [block for block in ALL if block.language in languages]
    return [pytest.param(block, id=f"{block.page}:{block.line}") for block in chosen]


def programs() -> list[str]:
    """Pages with Python of their own to run here."""
    with_python = {block.page for block in ALL if block.language == "python"}
    return sorted(with_python - set(ELSEWHERE) - {WALKED})


def clean_environment() -> dict[str, str]:
    """As a user's shell has it: commands of this environment, no rank."""
    of_ranks = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    kept = {key: value for key, value in os.environ.items() if key not in of_ranks}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def walk(page: str, folder: str) -> int:
    """Go through a page as a reader does, in `folder`; returns the number of blocks run."""
    os.chdir(folder)
    names: dict[str, object] = {"__name__": "page"}
    count = 0
    for block in blocks(page):
        if block.title is not None:
            Path(block.title).write_text(block.code)
        elif block.language == "python":
            exec(compile(block.code, f"{page}:{block.line}", "exec"), names)
            count += 1
        elif block.language == "console" and page == WALKED:
            for words in commands(block):
                count += start(words)
    return count


def start(words: list[str]) -> bool:
    """Run a command; those that install something are left alone."""
    if words[0] not in STARTED or words[:2] == ["python", "-m"]:
        return False
    done = subprocess.run(words, env=clean_environment(), capture_output=True, text=True)
    if done.returncode != 0:
        raise AssertionError(f"{words}: {done.stdout[-1500:]}{done.stderr[-1500:]}")
    return True


@pytest.mark.parametrize("page", programs())
def test_the_programs_of_a_page_run(page, tmp_path):
    assert run_ranks(walk, 1, page, str(tmp_path))[0] > 0


@pytest.mark.slow
def test_the_first_steps_run_as_they_stand(tmp_path):
    assert run_ranks(walk, 1, WALKED, str(tmp_path), timeout=400)[0] >= 8
    assert (tmp_path / "weights" / "model.safetensors").exists()


@pytest.mark.parametrize("page", sorted(ELSEWHERE | JSON_ELSEWHERE))
def test_a_page_that_is_run_elsewhere_is(page):
    test = (ROOT / (ELSEWHERE | JSON_ELSEWHERE)[page]).read_text()
    assert "README" in test or "config_errors" in test


@pytest.mark.parametrize("block", of("json"))
def test_a_configuration_of_a_page_has_no_fault(block: Block):
    config = json.loads(block.code) if block.page not in JSON_ELSEWHERE else None
    if config is not None:
        load_config(config, world_size=1)


@pytest.mark.parametrize("block", of("console", "bash", "indented"))
def test_the_commands_of_a_page_exist_with_their_options(block: Block):
    for words in commands(block):
        check_command(words, block.page)


@pytest.mark.parametrize("block", of("diff"))
def test_a_shown_difference_is_that_of_the_files(block: Block):
    before, after = (
        (ROOT / block.page).parent.joinpath(name).read_text()
        for name in ("train.py", "train_ds.py")
    )
    lines = block.code.splitlines()
    for mark, text in (("-", before), ("+", after)):
        shown = [line[1:].strip() for line in lines if line.startswith(mark)]
        assert [line for line in shown if line not in text] == []


def test_every_block_has_a_known_language():
    assert {block.language for block in ALL} <= set(KNOWN)
