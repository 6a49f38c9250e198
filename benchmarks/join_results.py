"""Writes RESULTS.md from the sections in results/, each the record of one benchmark's run."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
ORDER = [
    *(
        "engine",
        "cpu_adam",
        "cpu_optimizers",
        "aio",
        "tensor_files",
        "zero",
        "zero_memory",
        "checkpoint",
    ),
    *(
        "pipeline",
        "batching",
        "indexed",
        "curriculum",
        "flops_accuracy",
        "profiler_overhead",
        "peer",
    ),
]
HEAD = """# Results

Every speed claim of this repository, with the command that measured it. A claim is a ratio of
medians of contenders measured in turn in one run, so that the drift of a shared machine hits all
alike; absolute figures are those of the machine named in the section. This file is put together
from `results/` by `python benchmarks/join_results.py`.
"""


def section(file: Path) -> str:
    """The text of one file, at the second heading level, pictures found from here."""
    text = file.read_text().strip()
    if text.startswith("# "):
        text = "#" + text
    return re.sub(r"\]\(([\w-]+\.png)\)", r"](results/\1)", text)


def main() -> None:
    sections = {file.stem: section(file) for file in (HERE / "results").glob("*.md")}
    known = [name for name in ORDER if name in sections]
    rest = sorted(set(sections) - set(known))
    text = [HEAD.strip(), *(sections[name] for name in [*known, *rest])]
    (HERE / "RESULTS.md").write_text("\n\n".join(text) + "\n")


if __name__ == "__main__":
    main()
