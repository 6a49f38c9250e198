"""The Python blocks of our own READMEs run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FILES = ["packages/ds-core/README.md", "packages/deepspeed/README.md"]


def blocks():
    for file in FILES:
        text = (ROOT / file).read_text()
        for number, code in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL)):
            yield pytest.param(code, id=f"{Path(file).parent.name}-{number}")


@pytest.mark.parametrize("code", list(blocks()))
def test_a_block_of_a_readme_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
