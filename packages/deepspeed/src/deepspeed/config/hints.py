"""Type hints of section fields, taken apart and put into words."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

_RANGES = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
_WORDS = {
    bool: ("true or false", "true or false"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a text", "texts"),
    Path: ("a path", "paths"),
}


def members(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a Union (None left out), or the hint alone."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(part for part in get_args(hint) if part is not type(None))
    return (hint,)


def optional(hint: Any) -> bool:
    """True if None is one of the alternatives."""
    return hint is Any or hint is type(None) or type(None) in get_args(hint)


def section_type(hint: Any) -> type | None:
    """The dataclass among the alternatives of a hint, or None."""
    for part in members(hint):
        if isinstance(part, type) and is_dataclass(part):
            return part
    return None


def element_section(hint: Any) -> tuple[type, type] | None:
    """For `dict[str, D]`, `list[D]` and `tuple[D, ...]`: (dict or list, D); else None."""
    for part in members(hint):
        origin, arguments = get_origin(part), get_args(part)
        if origin in (dict, Mapping, typing.Mapping) and section_type(arguments[1]):
            return dict, section_type(arguments[1]) or object
        if origin in (list, tuple) and section_type(arguments[0]):
            return list, section_type(arguments[0]) or object
    return None


def choices(hint: Any) -> tuple[Any, ...]:
    """The values of the Literals and Enums among the alternatives."""
    found: list[Any] = []
    for part in members(hint):
        if get_origin(part) is Literal:
            found += get_args(part)
        elif isinstance(part, type) and issubclass(part, Enum):
            found += [member.value for member in part]
    return tuple(found)


def takes_whole_numbers_only(hint: Any) -> bool:
    """True if integers are welcome and fractions are not."""
    parts = members(hint)
    whole = int in parts or any(type(choice) is int for choice in choices(hint))
    return whole and float not in parts


def describe(hint: Any, rules: Mapping[str, Any]) -> str:
    """What a value of this hint looks like: `a whole number >= 1 or null`."""
    words = [_describe_part(part) for part in members(hint)]
    limits = [f"{sign} {rules[key]}" for key, sign in _RANGES.items() if key in rules]
    text = " or ".join(dict.fromkeys(words))
    if limits:
        text += " " + " and ".join(limits)
    return text + (" or null" if hint is not Any and optional(hint) else "")


def _describe_part(part: Any) -> str:
    if part in _WORDS:
        return _WORDS[part][0]
    if values := choices(part):
        quoted = ", ".join(repr(value) for value in values)
        return quoted if len(values) == 1 else f"one of {quoted}"
    if section_type(part) or get_origin(part) in (dict, Mapping) or part is dict:
        return "an object"
    if get_origin(part) in (list, tuple):
        inner = get_args(part)[0]
        plural = _WORDS[inner][1] if inner in _WORDS else _describe_part(inner)
        return f"a list of {plural}"
    return "a list" if part in (list, tuple) else "anything"
