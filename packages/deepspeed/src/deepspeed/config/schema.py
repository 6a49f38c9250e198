"""JSON Schema of every setting that the installed packages understand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from enum import Enum
from typing import Any, get_type_hints

import pydantic

from deepspeed.config.batch import BatchKeys
from deepspeed.config.hints import choices, element_section, optional, section_type
from deepspeed.config.sections import ALIASES, SHORTHAND
from ds_core.sections import General

_LIMITS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
}


def config_schema(sections: Mapping[str, type]) -> dict[str, Any]:
    """The schema (draft 2020-12) of a whole configuration with these sections."""
    properties: dict[str, Any] = {}
    for kind in (BatchKeys, General):
        properties |= section_schema(kind)["properties"]
    for name in sorted(sections):
        schema = section_schema(sections[name])
        if "enabled" in schema["properties"] or name in SHORTHAND:
            schema = {"description": schema.pop("description", name)} | _any_of(
                schema, {"type": "boolean"}
            )
        properties[name] = schema
    for old, name in ALIASES.items():
        if name in properties:
            properties[old] = {**properties[name], "deprecated": True}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "deepspeed configuration",
        "type": "object",
        "properties": properties,
    }


def section_schema(kind: type) -> dict[str, Any]:
    """The schema of one section; unknown keys are not allowed in it."""
    hints = get_type_hints(kind)
    properties: dict[str, Any] = {}
    required = []
    for item in fields(kind):
        if not item.init:
            continue
        schema = _field_schema(item, hints[item.name])
        properties[item.name] = schema
        for alias in item.metadata.get("aliases", ()):
            properties[alias] = {**schema, "deprecated": True}
        if item.default is MISSING and item.default_factory is MISSING:
            required.append(item.name)
    text = (kind.__doc__ or "").strip().partition("\n")[0]
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return (
        schema
        | ({"description": text} if text else {})
        | ({"required": required} if required else {})
    )


def _field_schema(item: Field[Any], wanted: Any) -> dict[str, Any]:
    rules = item.metadata
    schema = _value_schema(wanted, rules)
    if rules.get("auto"):
        schema = _any_of(schema, {"const": "auto"})
    result: dict[str, Any] = {}
    if "doc" in rules:
        result["description"] = rules["doc"]
    if "deprecated" in rules:
        result["deprecated"] = True
    default = _default(item)
    if default is not MISSING:
        result["default"] = default
    return result | schema


def _value_schema(wanted: Any, rules: Mapping[str, Any]) -> dict[str, Any]:
    if "only" in rules:
        return {"const": rules["only"]}
    section, elements = section_type(wanted), element_section(wanted)
    if section is not None:
        inner = section_schema(section)
    elif elements is not None and elements[0] is dict:
        inner = {"type": "object", "additionalProperties": section_schema(elements[1])}
    elif elements is not None:
        inner = {"type": "array", "items": section_schema(elements[1])}
    elif choices(wanted) and "spellings" in rules:
        inner = {"enum": [*choices(wanted), *rules["spellings"]]}
        return _or_null(inner, wanted)
    else:
        inner = pydantic.TypeAdapter(wanted).json_schema()
        return _limit(inner, rules)
    return _or_null(inner, wanted)


def _or_null(schema: dict[str, Any], wanted: Any) -> dict[str, Any]:
    return _any_of(schema, {"type": "null"}) if optional(wanted) else schema


def _any_of(*schemas: dict[str, Any]) -> dict[str, Any]:
    """Alternatives in one flat list."""
    parts: list[dict[str, Any]] = []
    for schema in schemas:
        parts += schema["anyOf"] if set(schema) == {"anyOf"} else [schema]
    return {"anyOf": parts}


def _limit(schema: dict[str, Any], rules: Mapping[str, Any]) -> dict[str, Any]:
    """Put the range on the number among the alternatives."""
    limits = {name: rules[key] for key, name in _LIMITS.items() if key in rules}
    if "anyOf" in schema:
        parts = [_limit(part, rules) for part in schema["anyOf"]]
        return {**schema, "anyOf": parts}
    if schema.get("type") not in ("integer", "number"):
        return schema
    if rules.get("size"):
        schema = {**schema, "type": "number"}
    return {**schema, **limits}


def _default(item: Field[Any]) -> Any:
    value = item.default
    if value is MISSING and item.default_factory is not MISSING:
        value = item.default_factory()
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Enum):
        return value.value
    return list(value) if isinstance(value, tuple) else value
