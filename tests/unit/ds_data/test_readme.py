"""The README's programs run."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[3] / "packages/ds-data/README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("block", range(len(BLOCKS)))
def test_code_block_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(BLOCKS[block], f"README block {block}", "exec"), {})
