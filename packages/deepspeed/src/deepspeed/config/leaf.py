"""One plain JSON value against the type and the range of its field."""

from __future__ import annotations

import json
import math
import numbers
import os
from collections.abc import Mapping
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, get_args, get_origin

import pydantic

from deepspeed.config.faults import Findings, hint, show
from deepspeed.config.hints import (
    choices,
    describe,
    members,
    takes_whole_numbers_only,
)

_RANGE_KEYS = ("ge", "gt", "le", "lt")

UNUSABLE = object()
"""Stands for a value that has a fault, or that means "take the default"."""


def read_leaf(
    wanted: Any, rules: Mapping[str, Any], value: Any, path: str, findings: Findings
) -> Any:
    """`value` as the type `wanted` (known at run time only), else a fault and `UNUSABLE`.

    Whole floats count as integers; size hints round down; choices match in any case.
    """
    plain = _spell(wanted, rules, _plain(value))
    if takes_whole_numbers_only(wanted):
        plain = _whole(plain, rules, path, findings)
    else:
        plain = _whole_elements(wanted, plain)
    try:
        result = _check(wanted, rules, plain)
    except (pydantic.ValidationError, TypeError, ValueError):
        findings.fault(path, _refusal(wanted, rules, value))
        return UNUSABLE
    if "only" in rules and result != rules["only"]:
        findings.fault(
            path,
            f"{show(value)} is not supported, only {show(rules['only'])}: {rules['otherwise']}",
        )
        return UNUSABLE
    return result


def _check(wanted: Any, rules: Mapping[str, Any], value: Any) -> Any:
    """Raise unless `value` has the wanted type and lies in the range."""
    allowed = choices(wanted)
    if isinstance(value, bool) and allowed and not any(choice is value for choice in allowed):
        raise ValueError("a boolean is no number")
    limits = tuple((key, rules[key]) for key in _RANGE_KEYS if key in rules)
    adapter = _adapter(_Key(wanted), limits)
    return adapter.validate_json(json.dumps(value), strict=True)


class _Key:
    """A type hint as a cache key: `bool | int` and `int | bool` stay apart, `1` and `True` too."""

    def __init__(self, wanted: Any) -> None:
        self.wanted: Any = wanted

    def __hash__(self) -> int:
        return hash(repr(self.wanted))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and (
            self.wanted is other.wanted or repr(self.wanted) == repr(other.wanted)
        )


@lru_cache(maxsize=512)
def _adapter(key: _Key, limits: tuple[tuple[str, Any], ...]) -> pydantic.TypeAdapter[Any]:
    wanted: Any = key.wanted
    numeric = dict(limits)
    if float in members(wanted):
        numeric["allow_inf_nan"] = False
    if numeric:
        wanted = Annotated[wanted, pydantic.Field(**numeric)]
    return pydantic.TypeAdapter(wanted)


def _refusal(wanted: Any, rules: Mapping[str, Any], value: Any) -> str:
    text = f"got {show(value)}, expected {describe(wanted, rules)}"
    if isinstance(value, str) and choices(wanted):
        close = hint(value, [str(choice) for choice in choices(wanted)])
        return text + (close if close.startswith(", did") else "")
    if isinstance(value, str) and str not in members(wanted) and reads_as_number(value):
        return text + " (without quotes)"
    return text


def reads_as_number(text: str) -> bool:
    """Whether a string is a number in quotes."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _plain(value: Any) -> Any:
    """numpy scalars, enums and paths in a Python config as the JSON values they stand for."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _spell(wanted: Any, rules: Mapping[str, Any], value: Any) -> Any:
    """The canonical word for a choice that was written in another case or by another name."""
    if "spellings" in rules:
        word = str(value).casefold()
        value = rules["spellings"].get(word, value)
    if isinstance(value, str) and str not in members(wanted):
        for choice in choices(wanted):
            if isinstance(choice, str) and choice.casefold() == value.casefold():
                return choice
    return value


def _whole(value: Any, rules: Mapping[str, Any], path: str, findings: Findings) -> Any:
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    if value.is_integer():
        return int(value)
    if rules.get("size"):
        findings.notices.append(f"{path}: {value} rounded down to {math.floor(value)}")
        return math.floor(value)
    return value


def _whole_elements(wanted: Any, value: Any) -> Any:
    """Whole floats inside lists and objects of integers as integers."""
    for part in members(wanted):
        arguments = get_args(part)
        if isinstance(value, list) and get_origin(part) in (list, tuple):
            return [_whole_number(arguments[0], item) for item in value]
        if isinstance(value, dict) and get_origin(part) in (dict, Mapping):
            return {key: _whole_number(arguments[1], item) for key, item in value.items()}
    return value


def _whole_number(wanted: Any, value: Any) -> Any:
    whole = isinstance(value, float) and value.is_integer() and takes_whole_numbers_only(wanted)
    return int(value) if whole else _whole_elements(wanted, value)
