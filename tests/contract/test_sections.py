"""What every JSON section must be, whichever package publishes it."""

from __future__ import annotations

import dataclasses
import json
from importlib.metadata import entry_points

import pytest

from deepspeed.config.batch import BatchKeys
from deepspeed.config.faults import Findings
from deepspeed.config.sections import GROUP, PROVIDERS
from deepspeed.config.validate import read_section
from ds_core.sections import General

RULES = {
    "doc",
    "ge",
    "gt",
    "le",
    "lt",
    "auto",
    "size",
    "aliases",
    "deprecated",
    "spellings",
    "endless",
    "only",
    "otherwise",
}
POINTS = {point.name: point for point in entry_points(group=GROUP)}


def fields_below(kind: type, path: str) -> list[tuple[str, dataclasses.Field]]:
    found = []
    for item in dataclasses.fields(kind):
        found.append((f"{path}.{item.name}", item))
        value = item.default_factory if item.default_factory is not dataclasses.MISSING else None
        if isinstance(value, type) and dataclasses.is_dataclass(value):
            found += fields_below(value, f"{path}.{item.name}")
    return found


def json_values(value: object) -> object:
    return json.loads(json.dumps(value, default=lambda item: getattr(item, "value", str(item))))


@pytest.fixture(params=[*sorted(POINTS), "general", "batch"])
def section(request) -> type:
    top = {"general": General, "batch": BatchKeys}
    return top.get(request.param) or POINTS[request.param].load()


@pytest.mark.parametrize("name", sorted(POINTS))
def test_section_is_published_by_the_package_the_error_names(name) -> None:
    assert POINTS[name].dist is not None
    assert PROVIDERS[name] == POINTS[name].dist.name


def test_section_is_a_frozen_dataclass_with_a_docstring(section) -> None:
    assert dataclasses.is_dataclass(section)
    assert section.__dataclass_params__.frozen
    assert section.__doc__
    assert not section.__doc__.startswith(f"{section.__name__}(")


def test_every_field_has_a_doc_line_and_known_rules(section) -> None:
    for path, item in fields_below(section, section.__name__):
        assert item.metadata.get("doc"), f"{path} has no doc"
        assert set(item.metadata) <= RULES, f"{path} has rules nobody applies"
        assert ("only" in item.metadata) == ("otherwise" in item.metadata), path


def test_defaults_read_back_as_themselves(section) -> None:
    needed = [
        item.name
        for item in dataclasses.fields(section)
        if item.default is item.default_factory is dataclasses.MISSING
    ]
    values = dict.fromkeys(needed, "text")
    given = section(**values)
    findings = Findings()
    again = read_section(section, json_values(dataclasses.asdict(given)), "section", findings)
    assert findings.faults == []
    assert again == given
