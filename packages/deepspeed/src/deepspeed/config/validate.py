"""One section of JSON becomes one frozen dataclass, or a list of faults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, get_args, get_origin, get_type_hints

from deepspeed.config.faults import Fault, Findings, hint, join, show
from deepspeed.config.hints import (
    choices,
    describe,
    element_section,
    members,
    optional,
    section_type,
)
from deepspeed.config.leaf import UNUSABLE, read_leaf


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
        if result is not UNUSABLE:
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
        return UNUSABLE
    if wanted is Any:
        return value
    if rules.get("endless") and isinstance(value, float) and value == math.inf:
        return None
    section = section_type(wanted)
    if value is None:
        if optional(wanted):
            return None
        if section is not None:
            return UNUSABLE
        findings.fault(
            path,
            f"got null, expected {describe(wanted, rules)}; leave the key out for the default",
        )
        return UNUSABLE
    if section is not None and isinstance(value, Mapping):
        result = read_section(section, value, path, findings)
        return UNUSABLE if result is None else result
    if section is not None and value is False:
        return None if optional(wanted) else UNUSABLE
    elements = element_section(wanted)
    if elements is not None:
        return _read_elements(*elements, value, path, findings)
    if _is_free_form(wanted) and isinstance(value, Mapping):
        _find_autos(value, rules, path, findings)
        return dict(value)
    return read_leaf(wanted, rules, value, path, findings)


def _read_elements(
    container: type, element: type, value: Any, path: str, findings: Findings
) -> Any:
    if container is dict and isinstance(value, Mapping):
        named = {
            str(key): read_section(element, item, join(path, str(key)), findings)
            for key, item in value.items()
        }
        return UNUSABLE if None in named.values() else named
    if container is list and isinstance(value, (list, tuple)):
        items = [
            read_section(element, item, f"{path}[{index}]", findings)
            for index, item in enumerate(value)
        ]
        return UNUSABLE if None in items else items
    kind = "an object of objects" if container is dict else "a list of objects"
    findings.fault(path, f"got {show(value)}, expected {kind}")
    return UNUSABLE


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
