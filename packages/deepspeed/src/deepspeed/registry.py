"""Looks up what installed packages offer, by the names that stand in JSON."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ds_core.errors import ConfigError


def offered(group: str) -> dict[str, EntryPoint]:
    """Everything the installed packages publish under `deepspeed.<group>`, by name."""
    return {point.name: point for point in entry_points(group=f"deepspeed.{group}")}


def load(group: str, name: str) -> Any:
    """What is published as `name`; typed Any because the group decides what it is.

    Raises:
        ConfigError: if nothing installed offers it, or what does cannot be imported.
    """
    points = offered(group)
    if name not in points:
        known = ", ".join(sorted(points)) or "nothing"
        raise ConfigError(f"no installed package offers {name!r} in {group}; installed: {known}")
    point = points[name]
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        owner = point.dist.name if point.dist is not None else point.value
        raise ConfigError(f"{group} {name!r} of {owner} cannot be loaded: {error}") from error


def find(group: str, name: str) -> Any:
    """Like `load`, but None where nothing offers it."""
    return load(group, name) if name in offered(group) else None
