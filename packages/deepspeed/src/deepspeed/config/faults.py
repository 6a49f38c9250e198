"""What is wrong with a configuration, and how near a misspelt name is to a known one."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from ds_core.errors import ConfigError

_LONGEST_VALUE = 60
_NEAR_RATIO = 0.8
_HINT_RATIO = 0.55


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: `path` is the dotted key (or empty), `message` the rule."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigFaults(ConfigError):
    """Every fault of one configuration.

    Attributes:
        label: where the configuration came from.
        faults: all that is wrong, in the order of the file.
    """

    def __init__(self, label: str, faults: Iterable[Fault]) -> None:
        self.label = label
        self.faults = tuple(faults)
        count = len(self.faults)
        head = f"{label} has {count} fault{'' if count == 1 else 's'}:"
        super().__init__("\n  ".join([head, *(str(fault) for fault in self.faults)]))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.label, self.faults)


@dataclass
class Findings:
    """What a reading of a configuration turned up.

    Attributes:
        faults: what must be mended.
        notices: what was understood in a way worth telling.
        autos: paths whose value is still "auto".
    """

    faults: list[Fault] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    autos: list[str] = field(default_factory=list)

    def fault(self, path: str, message: str) -> None:
        self.faults.append(Fault(path, message))


def show(value: object) -> str:
    """A value as it would stand in the JSON file, shortened."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def join(path: str, key: str) -> str:
    """The dotted path of `key` inside `path`."""
    return f"{path}.{key}" if path else key


def near_miss(key: str, known: Iterable[str]) -> str | None:
    """The known name that `key` almost certainly was meant to be, or None.

    A known name with more words after it (`checkpoint_dir`) is a name of its own.
    """
    best, ratio = _closest(key, known)
    if best is None or key.startswith(f"{best}_"):
        return None
    edits = _edits(_plain(key), _plain(best))
    close = edits == 0 or (len(best) >= 8 and edits <= 2) or (len(best) >= 5 and edits <= 1)
    return best if close or ratio >= _NEAR_RATIO else None


def hint(key: str, known: Iterable[str]) -> str:
    """The tail of a message about an unknown key: the nearest known one, else all of them."""
    names = list(known)
    best, ratio = _closest(key, names)
    if best is not None and ratio >= _HINT_RATIO:
        return f", did you mean {best!r}?"
    if names and len(names) <= 12:
        return f"; known keys: {', '.join(names)}"
    return ""


def _closest(key: str, known: Iterable[str]) -> tuple[str | None, float]:
    best, best_ratio = None, 0.0
    for name in known:
        ratio = SequenceMatcher(None, _plain(key), _plain(name)).ratio()
        if ratio > best_ratio:
            best, best_ratio = name, ratio
    return best, best_ratio


def _plain(name: str) -> str:
    return name.casefold().replace("-", "_")


def _edits(a: str, b: str) -> int:
    """Edit distance in which swapping two neighbours counts as one edit."""
    rows = [list(range(len(b) + 1))]
    for i, left in enumerate(a, start=1):
        row = [i]
        for j, right in enumerate(b, start=1):
            cost = min(rows[i - 1][j] + 1, row[j - 1] + 1, rows[i - 1][j - 1] + (left != right))
            if i > 1 and j > 1 and left == b[j - 2] and a[i - 2] == right:
                cost = min(cost, rows[i - 2][j - 2] + 1)
            row.append(cost)
        rows.append(row)
    return rows[-1][-1]
