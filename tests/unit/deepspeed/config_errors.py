"""The table of bad configurations: what each one is told. Run it to rewrite the docs page."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
TABLE = HERE / "bad_configs.json"
PAGE = HERE.parents[2] / "docs" / "config-errors.md"

_HEAD = """# What a wrong configuration is told

Every message names the path, the value and the rule, and the nearest known key where there is
one. All faults of a file come at once: `deepspeed.initialize` raises them as one `ConfigFaults`, a
`deepspeed.ConfigError`; `ds_config check FILE --world-size N` prints them and exits with 1. This
page is made from the table that the tests run (`tests/unit/deepspeed/bad_configs.json`); each case
there has its stated number of data-parallel ranks.

How a configuration is read:

- It is a dict, a JSON file (comments and trailing commas are fine), or url-safe base64 of JSON.
- A misspelt key is an error at every level. A top-level name that is near to no known one is the
  user's own: a warning. Inside a section every unknown key is an error.
- Whole floats are integers (`5e8`, `8.0`). Size hints (bucket sizes) with a fraction are rounded
  down with a warning. Numbers in quotes, and booleans for numbers, are errors.
- `"auto"` means the default where one is known: bucket sizes, loss scaling, batch sizes that
  follow from the others. Anywhere else it is an error that lists all such keys.
- `null` is for optional settings. `steps_per_print` may be `null` or `Infinity`: never.
- A section that nothing installed serves is an error, unless it is disabled.
- The same setting in two places with two values is an error that names both.
- The number of data-parallel ranks comes from the caller, else the process group, else the
  environment, else it is 1; every message about batch sizes says which.
"""


@dataclass(frozen=True)
class BadConfig:
    """One case: the text of the file, the ranks it is read for, the faults it must give."""

    name: str
    text: str
    world_size: int
    faults: tuple[str, ...]


def load_table() -> list[BadConfig]:
    rows = json.loads(TABLE.read_text())
    return [
        BadConfig(
            row["name"],
            row.get("text") or json.dumps(row["config"]),
            row.get("world_size", 1),
            tuple(row["faults"]),
        )
        for row in rows
    ]


def render_page() -> str:
    parts = [_HEAD]
    for case in load_table():
        ranks = "" if case.world_size == 1 else f" ({case.world_size} ranks)"
        faults = "\n".join(case.faults)
        parts.append(f"## {case.name}{ranks}\n\n```json\n{case.text}\n```\n\n```\n{faults}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(render_page())
