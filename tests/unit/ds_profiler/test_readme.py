"""The README's code blocks run as they stand; importing the package does nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).parents[3] / "packages" / "ds-profiler" / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_each_block_runs(block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(block, str(README), "exec"), {"__name__": "readme"})


def test_importing_prints_nothing_and_loads_no_optional_library() -> None:
    code = (
        "import sys, torch; before = set(sys.modules); import ds_profiler; "
        "bad = {'wandb', 'comet_ml', 'tensorboard', 'rich', 'torch._dynamo'} "
        "& (set(sys.modules) - before); sys.exit(str(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
