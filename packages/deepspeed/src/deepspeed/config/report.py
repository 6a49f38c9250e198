"""A resolved configuration laid out for reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from deepspeed.config.batch import ACCUMULATION, MICRO, TRAIN
from deepspeed.config.faults import show
from deepspeed.config.load import Config
from deepspeed.config.sections import ALIASES

_DEFAULT = "default"


def settings_lines(config: Config, *, defaults: bool = True) -> list[str]:
    """Every setting in force, one a line, marked where it is derived or a default.

    Without `defaults` only what is set and what is derived from it.
    """
    batch = config.batch
    rows: list[tuple[str, str, str]] = []
    for key, value in (
        (TRAIN, batch.train),
        (MICRO, batch.micro),
        (ACCUMULATION, batch.accumulation),
    ):
        given = config.raw.get(key) not in (None, "auto")
        rows.append((key, str(value), "" if given else "derived"))
    rows.append(("data-parallel ranks", str(batch.world_size), f"from {batch.source}"))
    rows += _rows(config.general, config.raw, 0, defaults)
    old_names = {new: old for old, new in ALIASES.items()}
    for name, section in config.sections.items():
        raw = config.raw.get(name, config.raw.get(old_names.get(name, "")))
        raw = {"enabled": raw} if isinstance(raw, bool) else raw
        rows.append((name, "", ""))
        rows += _rows(section, raw if isinstance(raw, Mapping) else {}, 1, defaults)
    width = max(len(name) for name, _, _ in rows) + 2
    return [f"{name:<{width}}{value:<12} {note}".rstrip() for name, value, note in rows]


def _rows(
    section: object, raw: Mapping[str, Any], depth: int, defaults: bool
) -> list[tuple[str, str, str]]:
    rows = []
    for item in fields(section):  # type: ignore[arg-type]  # sections are dataclasses
        value = getattr(section, item.name)
        name = "  " * depth + item.name
        written = next((key for key in (item.name, *_aliases(item)) if key in raw), None)
        note = "" if written is not None and raw[written] != "auto" else _DEFAULT
        if note == _DEFAULT and not defaults:
            continue
        if is_dataclass(value):
            inner = raw[written] if written is not None else {}
            rows.append((name, "", note))
            inner = inner if isinstance(inner, Mapping) else {}
            rows += _rows(value, inner, depth + 1, defaults)
        elif isinstance(value, Mapping) and value:
            rows.append((name, "", note))
            rows += _entries(value, depth + 1)
        else:
            rows.append((name, show(value), note))
    return rows


def _entries(values: Mapping[str, Any], depth: int) -> list[tuple[str, str, str]]:
    """The entries of a free-form object such as `scheduler.params`, one a line."""
    rows = []
    for key, value in values.items():
        name = "  " * depth + str(key)
        if isinstance(value, Mapping) and value:
            rows += [(name, "", ""), *_entries(value, depth + 1)]
        else:
            rows.append((name, show(value), ""))
    return rows


def _aliases(item: Any) -> tuple[str, ...]:
    """Other spellings of a field (dataclasses.Field is generic in a type nobody knows here)."""
    return tuple(item.metadata.get("aliases", ()))
