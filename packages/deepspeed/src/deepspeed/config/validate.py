"""One section of JSON becomes one frozen dataclass, or a list of faults."""

from __future__ import annotations

import json
import math
import numbers
import os
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pydantic

from deepspeed.config.faults import Fault, hint, join, show
from deepspeed.config.hints import (
    choices,
    describe,
    element_section,
    members,
    optional,
    section_type,
    takes_whole_numbers_only,
)

_RANGE_KEYS = ("ge", "gt", "le", "lt")
_UNUSABLE = object()
"""Stands for a value that has a fault, or that means "take the default"."""


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


def read_section(kind: type, raw: object, path: str, findings: Findings) -> Any:
    """An instance of dataclass `kind` filled from `raw`; None if there are faults.

    Returned as Any because the dataclass is known at run time only.
    """
    if not isinstance(raw, Mapping):
        findings.fault(path, f"got {show(raw)}, expected an object")
        return None
    before = len(findings.faults)
    known = {item.name: item for item in fields(kind) if item.init}
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, (key, value) in _by_name(known, raw, path, findings).items():
        rules = known[name].metadata
        result = _read_value(hints[name], rules, value, join(path, key), findings)
        if result is not _UNUSABLE:
            values[name] = result
        if "deprecated" in rules:
            findings.notices.append(f"{join(path, key)}: deprecated, {rules['deprecated']}")
    given = {_canonical(known).get(key, key) for key in raw}
    for name, item in known.items():
        if _required(item) and name not in given:
            findings.fault(join(path, name), f"missing, expected {describe(hints[name], {})}")
    needed = {name for name, item in known.items() if _required(item)}
    if len(findings.faults) > before or not needed <= values.keys():
        return None
    try:
        return kind(**values)
    except ValueError as error:
        for text in map(str, error.args):
            findings.faults.append(_own_fault(path, text))
        return None


def _own_fault(path: str, text: str) -> Fault:
    """A fault that a section found itself; its text may begin with a path inside the section."""
    if not text.startswith(f"{path}."):
        return Fault(path, text)
    inner, colon, message = text.partition(": ")
    return Fault(inner, message) if colon and " " not in inner else Fault("", text)


def _by_name(
    known: Mapping[str, Field[Any]], raw: Mapping[Any, Any], path: str, findings: Findings
) -> dict[str, tuple[str, Any]]:
    """Field name -> (key as written, value), with unknown and doubled keys reported."""
    canonical = _canonical(known)
    found: dict[str, tuple[str, Any]] = {}
    for key, value in raw.items():
        name = canonical.get(key, key)
        if name not in known:
            findings.fault(join(path, str(key)), f"unknown key{hint(str(key), known)}")
        elif name in found and found[name][1] != value:
            other, first = found[name]
            findings.fault(
                join(path, key),
                f"{show(value)} contradicts {join(path, other)}, the same setting, "
                f"which is {show(first)}; keep one",
            )
        else:
            found.setdefault(name, (key, value))
    return found


def _canonical(known: Mapping[str, Field[Any]]) -> dict[str, str]:
    return {
        alias: name for name, item in known.items() for alias in item.metadata.get("aliases", ())
    }


def _required(item: Field[Any]) -> bool:
    return item.default is MISSING and item.default_factory is MISSING


def _read_value(
    wanted: Any, rules: Mapping[str, Any], value: Any, path: str, findings: Findings
) -> Any:
    if value == "auto" and isinstance(value, str) and "auto" not in choices(wanted):
        if not rules.get("auto"):
            findings.autos.append(path)
        return _UNUSABLE
    if wanted is Any:
        return value
    if rules.get("endless") and isinstance(value, float) and value == math.inf:
        return None
    section = section_type(wanted)
    if value is None:
        if optional(wanted):
            return None
        if section is not None:
            return _UNUSABLE
        findings.fault(
            path,
            f"got null, expected {describe(wanted, rules)}; leave the key out for the default",
        )
        return _UNUSABLE
    if section is not None and isinstance(value, Mapping):
        result = read_section(section, value, path, findings)
        return _UNUSABLE if result is None else result
    if section is not None and value is False:
        return None if optional(wanted) else _UNUSABLE
    elements = element_section(wanted)
    if elements is not None:
        return _read_elements(*elements, value, path, findings)
    if _is_free_form(wanted) and isinstance(value, Mapping):
        _find_autos(value, rules, path, findings)
        return dict(value)
    return _read_leaf(wanted, rules, value, path, findings)


def _read_elements(
    container: type, element: type, value: Any, path: str, findings: Findings
) -> Any:
    if container is dict and isinstance(value, Mapping):
        named = {
            str(key): read_section(element, item, join(path, str(key)), findings)
            for key, item in value.items()
        }
        return _UNUSABLE if None in named.values() else named
    if container is list and isinstance(value, (list, tuple)):
        items = [
            read_section(element, item, f"{path}[{index}]", findings)
            for index, item in enumerate(value)
        ]
        return _UNUSABLE if None in items else items
    kind = "an object of objects" if container is dict else "a list of objects"
    findings.fault(path, f"got {show(value)}, expected {kind}")
    return _UNUSABLE


def _is_free_form(wanted: Any) -> bool:
    return any(
        part is dict or (get_origin(part) in (dict, Mapping) and get_args(part)[1] is Any)
        for part in members(wanted)
    )


def _find_autos(value: Any, rules: Mapping[str, Any], path: str, findings: Findings) -> None:
    """List every "auto" inside a free-form object, where no default is known."""
    if rules.get("auto"):
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            _find_autos(item, rules, join(path, str(key)), findings)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _find_autos(item, rules, f"{path}[{index}]", findings)
    elif isinstance(value, str) and value == "auto":
        findings.autos.append(path)


def _read_leaf(
    wanted: Any, rules: Mapping[str, Any], value: Any, path: str, findings: Findings
) -> Any:
    plain = _spell(wanted, rules, _plain(value))
    if takes_whole_numbers_only(wanted):
        plain = _whole(plain, rules, path, findings)
    else:
        plain = _whole_elements(wanted, plain)
    try:
        result = _check(wanted, rules, plain)
    except (pydantic.ValidationError, TypeError, ValueError):
        findings.fault(path, _refusal(wanted, rules, value))
        return _UNUSABLE
    if "only" in rules and result != rules["only"]:
        findings.fault(
            path,
            f"{show(value)} is not supported, only {show(rules['only'])}: {rules['otherwise']}",
        )
        return _UNUSABLE
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
    if isinstance(value, str) and str not in members(wanted) and _is_number(value):
        return text + " (without quotes)"
    return text


def _is_number(text: str) -> bool:
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
