"""Where a configuration comes from: a dict, a JSON file, or base64 text."""

from __future__ import annotations

import base64
import binascii
import copy
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deepspeed.config.faults import ConfigFaults, Fault, join, show
from deepspeed.config.tolerant import strict_json
from ds_core.errors import ConfigError

_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null", "'": '"'}

Source = Mapping[str, Any] | str | os.PathLike[str]


@dataclass(frozen=True)
class RawConfig:
    """A configuration as it was written.

    Attributes:
        values: the JSON object, a copy of the caller's.
        label: where it came from, for messages.
        faults: doubled keys and keys that are no text.
    """

    values: dict[str, Any]
    label: str
    faults: tuple[Fault, ...] = ()


class _Object(dict[str, Any]):
    """A JSON object that remembers the keys it was given twice."""

    doubled: tuple[tuple[str, Any, Any], ...] = ()


def read_source(source: Source) -> RawConfig:
    """Read a dict, the path of a JSON file, or url-safe base64 of JSON."""
    if isinstance(source, Mapping):
        values = copy.deepcopy(dict(source))
        faults = [Fault(path, f"key {key!r} is no text") for path, key in _foreign_keys(values, "")]
        return RawConfig(values, "the configuration", tuple(faults))
    if not isinstance(source, (str, os.PathLike)):
        raise ConfigError(
            f"the configuration is {type(source).__name__}, expected a dict, the path of a "
            "JSON file, or base64 of JSON"
        )
    if not os.fspath(source).strip():
        raise ConfigError(
            "the configuration is an empty text, expected the path of a JSON file or base64 of JSON"
        )
    path = Path(source)
    if _is_file(path):
        return _parse(path.read_text(encoding="utf-8-sig"), str(source))
    text = _decode(source) if isinstance(source, str) else None
    if text is not None:
        return _parse(text, "the base64 configuration")
    raise ConfigError(f"no such configuration: {source!s} is neither a file nor base64 of JSON")


def resolve_source(
    args: object = None, config: Source | None = None, config_params: Source | None = None
) -> Source:
    """The one configuration among `args.deepspeed_config`, `config` and `config_params`.

    `args` is a namespace, a dict, or None. Several places may hold the same content; two that
    differ raise, naming both.
    """
    places: list[tuple[str, Source]] = []
    for name, value in (
        ("config", config),
        ("config_params", config_params),
        ("args.deepspeed_config", _attribute(args, "deepspeed_config")),
        ("args.deepscale_config", _attribute(args, "deepscale_config")),
    ):
        if value is not None:
            places.append((name, value))
    if not places:
        raise ConfigError(
            "no configuration: pass config (a dict, the path of a JSON file, or base64), or args "
            "with deepspeed_config"
        )
    first_name, first = places[0]
    for name, other in places[1:]:
        if other is first or other == first:
            continue
        ours, theirs = read_source(first).values, read_source(other).values
        if ours != theirs:
            raise ConfigError(
                f"{first_name} and {name} are two different configurations "
                f"({_difference(ours, theirs)}); pass one"
            )
    return first


def _attribute(args: object, name: str) -> Any:
    if isinstance(args, Mapping):
        return args.get(name)
    return getattr(args, name, None)


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any], path: str = "") -> str:
    for key in [*ours, *(key for key in theirs if key not in ours)]:
        if key not in ours or key not in theirs:
            return f"only one has {join(path, key)}"
        mine, other = ours[key], theirs[key]
        if isinstance(mine, Mapping) and isinstance(other, Mapping) and mine != other:
            return _difference(mine, other, join(path, key))
        if mine != other:
            return f"{join(path, key)} is {show(mine)} in one, {show(other)} in the other"
    return "they differ"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _decode(text: str) -> str | None:
    try:
        padded = text + "=" * (-len(text) % 4)
        decoded = base64.b64decode(padded, altchars=b"-_", validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return None
    return decoded if decoded.lstrip()[:1] == "{" else None


def _parse(text: str, label: str) -> RawConfig:
    try:
        values = json.loads(strict_json(text), object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        line = text.splitlines()[error.lineno - 1].strip() if text.strip() else ""
        message = f"no valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        for word, json_word in _PYTHON_WORDS.items():
            if text.startswith(word, error.pos):
                message += f" (JSON writes {json_word}, not {word})"
        raise ConfigFaults(label, [Fault("", f"{message}: {line}" if line else message)]) from None
    if not isinstance(values, dict):
        raise ConfigFaults(label, [Fault("", f"got {show(values)}, expected an object")])
    faults = [
        Fault(path, f"given twice, as {show(first)} and as {show(second)}; keep one")
        for path, first, second in _doubled_keys(values, "")
    ]
    return RawConfig(_as_dict(values), label, tuple(faults))


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    result = _Object()
    doubled = []
    for key, value in pairs:
        if key in result:
            doubled.append((key, result[key], value))
        result[key] = value
    result.doubled = tuple(doubled)
    return result


def _doubled_keys(value: Any, path: str) -> list[tuple[str, Any, Any]]:
    found: list[tuple[str, Any, Any]] = []
    if isinstance(value, _Object):
        found += [(join(path, key), first, second) for key, first, second in value.doubled]
        for key, item in value.items():
            found += _doubled_keys(item, join(path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            found += _doubled_keys(item, f"{path}[{index}]")
    return found


def _foreign_keys(value: Any, path: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        for key, item in value.items():
            if isinstance(key, str):
                found += _foreign_keys(item, join(path, key))
            else:
                found.append((path, key))
    return found


def _as_dict(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_dict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_as_dict(item) for item in value]
    return value
