"""The examples of the README run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[3] / "packages" / "ds-kernels" / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("index", range(len(EXAMPLES)))
def test_an_example_runs(index: int) -> None:
    exec(compile(EXAMPLES[index], f"README example {index}", "exec"), {})


def test_the_first_example_has_ten_lines_at_most() -> None:
    assert len([line for line in EXAMPLES[0].splitlines() if line.strip()]) <= 10
