"""A JSON configuration, read and checked as a whole."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from deepspeed.config.batch import (
    BatchKeys,
    BatchSizes,
    WorldSize,
    find_world_size,
    resolve_batch,
    speaks,
)
from deepspeed.config.check import (
    check_activation_checkpointing,
    check_learning_rate,
    check_precision,
    check_types,
    note_idle_settings,
    settle_clipping,
)
from deepspeed.config.faults import ConfigFaults, Fault, Findings, near_miss, show
from deepspeed.config.sections import (
    ALIASES,
    PROVIDERS,
    SHORTHAND,
    UNSERVED,
    InstalledSections,
    is_idle,
    known_names,
    why_unserved,
)
from deepspeed.config.source import RawConfig, Source, read_source
from deepspeed.config.validate import read_section
from ds_core.errors import ConfigError
from ds_core.sections import General

_log = logging.getLogger(__name__)

_RULES: tuple[Callable[[Mapping[str, object], Findings], None], ...] = (
    check_precision,
    check_learning_rate,
    check_activation_checkpointing,
)


@dataclass(frozen=True)
class Config:
    """A configuration without faults.

    Attributes:
        raw: the JSON object as it was given (a copy).
        general: the top-level settings.
        batch: the batch sizes, all known.
        sections: the sections that were given, by their current name.
        notices: what was read in a way worth telling.
        label: where the configuration came from.
    """

    raw: dict[str, Any]
    general: General
    batch: BatchSizes
    sections: Mapping[str, object]
    notices: tuple[str, ...] = ()
    label: str = "the configuration"
    installed: Mapping[str, type] = field(default_factory=dict, repr=False)

    def section(self, name: str) -> Any:
        """The section as given, else with all its defaults; raises if nothing serves it.

        Returned as Any because the caller knows which dataclass the name stands for.
        """
        if name in self.sections:
            return self.sections[name]
        if name not in self.installed:
            known = name in PROVIDERS or name in UNSERVED
            why = why_unserved(name) if known else "nothing installed serves this section"
            raise ConfigError(f"{name}: {why}")
        try:
            return self.installed[name]()
        except TypeError as error:
            raise ConfigError(f"{name}: not given, and it has no defaults ({error})") from error


def load_config(
    source: Source,
    *,
    world_size: int | WorldSize | None = None,
    sections: Mapping[str, type] | None = None,
    partial: bool = False,
    replaced: Collection[str] = (),
) -> Config:
    """Read `source` and check all of it; raise `ConfigFaults` with everything that is wrong.

    Args:
        source: a dict, the path of a JSON file, or url-safe base64 of JSON.
        world_size: data-parallel ranks; by default from the process group, else from
            WORLD_SIZE, else 1.
        sections: JSON key -> dataclass; by default those of all installed packages.
        partial: accept values still "auto" (their defaults apply) and missing batch sizes
            (micro-batch 1), for readers that come before the configuration is complete.
        replaced: which of "optimizer" and "scheduler" the program brings itself, so that the
            name in the section is nobody's.
    """
    config, findings = _read(read_source(source), world_size, sections, partial, replaced)
    if findings.faults:
        raise ConfigFaults(config.label, findings.faults)
    for notice in config.notices if speaks() else ():
        _log.warning("%s: %s", config.label, notice)
    return config


def brought(optimizer: object, schedule: object) -> tuple[str, ...]:
    """What `initialize` is given instead of a section: `replaced` of `load_config`."""
    given = {"optimizer": optimizer, "scheduler": schedule}
    return tuple(name for name, value in given.items() if value is not None)


def inspect_config(
    source: Source,
    *,
    world_size: int | WorldSize | None = None,
    sections: Mapping[str, type] | None = None,
) -> tuple[Config, tuple[Fault, ...]]:
    """The configuration as far as it can be read, and every fault, for a report."""
    raw = read_source(source)
    config, findings = _read(raw, world_size, sections)
    return config, tuple(findings.faults)


def _read(
    raw: RawConfig,
    world_size: int | WorldSize | None,
    sections: Mapping[str, type] | None,
    partial: bool = False,
    replaced: Collection[str] = (),
) -> tuple[Config, Findings]:
    """The configuration as far as it can be read, with all that was found."""
    installed = InstalledSections() if sections is None else sections
    findings = Findings(list(raw.faults))
    values = _current_names(raw.values, findings)
    general = _read_top(General, values, findings)
    batch_keys = _read_top(BatchKeys, values, findings)
    given = _read_sections(values, installed, findings)
    for rule in () if partial else _RULES:
        rule(given, findings)
    if not partial:
        check_types({k: v for k, v in given.items() if k not in replaced}, findings)
    if general is not None:
        general = settle_clipping(general, given, values, findings)
        note_idle_settings(general, findings)
    batch = None
    world = find_world_size(world_size)
    if batch_keys is not None:
        if partial and not (
            batch_keys.train_batch_size or batch_keys.train_micro_batch_size_per_gpu
        ):
            batch_keys = replace(batch_keys, train_micro_batch_size_per_gpu=1)
        batch = resolve_batch(batch_keys, values, world, findings)
    if findings.autos and not partial:
        findings.faults.append(_left_auto(findings.autos))
    findings.faults = _as_in_file(findings.faults, raw.values)
    config = Config(
        raw=raw.values,
        general=general or General(),
        batch=batch or BatchSizes(world.size, 1, 1, world.size, world.source),
        sections=given,
        notices=tuple(findings.notices),
        label=raw.label,
        installed=installed,
    )
    return config, findings


def _current_names(values: Mapping[str, Any], findings: Findings) -> dict[str, Any]:
    """The top level with old section names replaced by current ones."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        name = ALIASES.get(key, key)
        if name in result and result[name] != value:
            old = next(old for old, new in ALIASES.items() if new == name)
            findings.fault(
                old,
                f"{show(values[old])} contradicts {name}, the same section, "
                f"which is {show(values[name])}; keep {name}",
            )
        else:
            result[name] = value
    return result


def _read_top(kind: type, values: Mapping[str, Any], findings: Findings) -> Any:
    """The fields of `kind` among the top-level keys; the dataclass is the caller's choice."""
    own = {item.name: values[item.name] for item in fields(kind) if item.name in values}
    return read_section(kind, own, "", findings)


def _read_sections(
    values: Mapping[str, Any], installed: Mapping[str, type], findings: Findings
) -> dict[str, Any]:
    top = {item.name for kind in (General, BatchKeys) for item in fields(kind)}
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in top or value is None:
            continue
        if name in installed:
            section = _read_one(name, installed[name], value, findings)
            if section is not None:
                found[name] = section
        elif name in PROVIDERS or name in UNSERVED:
            if not is_idle(name, value):
                findings.fault(name, why_unserved(name))
        else:
            _unknown(name, [*top, *known_names(installed)], findings)
    return found


def _read_one(name: str, kind: type, value: Any, findings: Findings) -> Any:
    """One section; `true` and `false` stand for its `enabled` key."""
    if isinstance(value, bool):
        names = {item.name for item in fields(kind)}
        if name in SHORTHAND:
            value = SHORTHAND[name](value)
        elif "enabled" in names:
            value = {"enabled": value}
    return read_section(kind, value, name, findings)


def _unknown(name: Any, known: list[str], findings: Findings) -> None:
    if not isinstance(name, str):
        return
    head = name.partition(".")[0]
    if head != name and (head in known or near_miss(head, known)):
        findings.notices.append(f"{name}: ignored, a dotted key at the top level sets nothing")
        return
    meant = near_miss(name, known)
    if meant is not None:
        findings.fault(name, f"unknown key, did you mean {meant!r}?")
    else:
        findings.notices.append(f"{name}: unknown key, ignored")


def _left_auto(paths: list[str]) -> Fault:
    return Fault(
        "",
        f'"auto" is left in {", ".join(paths)}: only the program that fills in "auto" knows '
        "these; give values",
    )


def _as_in_file(faults: list[Fault], values: Mapping[str, Any]) -> list[Fault]:
    """The faults in the order of the file, under the section names used there."""
    written = {new: old for old, new in ALIASES.items() if old in values and new not in values}
    faults = [replace(fault, path=_rename(fault.path, written)) for fault in faults]
    order = {key: index for index, key in enumerate(values)}

    def position(fault: Fault) -> int:
        head = (fault.path or fault.message).partition(".")[0]
        return order.get(fault.path, order.get(head, len(order)))

    return sorted(faults, key=position)


def _rename(path: str, names: Mapping[str, str]) -> str:
    head, dot, tail = path.partition(".")
    return names.get(head, head) + dot + tail
