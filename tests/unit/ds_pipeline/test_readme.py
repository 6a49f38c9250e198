"""The README's examples run."""

from __future__ import annotations

import re
from pathlib import Path

import torch

README = Path(__file__).parents[3] / "packages" / "ds-pipeline" / "README.md"


def test_every_example_runs():
    torch.manual_seed(0)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        names: dict[str, object] = {}
        exec(block, names)
        assert "loss" in names or "timeline" in names
