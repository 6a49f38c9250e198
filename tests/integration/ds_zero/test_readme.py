"""The README's program runs, alone and on two ranks."""

from __future__ import annotations

import re
from pathlib import Path

from support.ranks import run_ranks

README = Path(__file__).parents[3] / "packages" / "ds-zero" / "README.md"


def run_example() -> float:
    code = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)[0]
    names: dict[str, object] = {}
    exec(code, names)
    return float(names["loss"])  # type: ignore[arg-type]


def test_example_trains_on_one_and_two_ranks():
    assert run_ranks(run_example, 1)[0] >= 0
    assert len(run_ranks(run_example, 2)) == 2
