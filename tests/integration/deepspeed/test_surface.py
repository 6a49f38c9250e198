"""Every public name that programs know works or says why not; the page that lists them is true."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import deepspeed
from deepspeed.legacy import NotOffered, names_of, table

ROOT = Path(__file__).resolve().parents[3]


def load_generator():
    spec = importlib.util.spec_from_file_location("make_surface", ROOT / "docs" / "make_surface.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_surface"] = module
    spec.loader.exec_module(module)
    return module


surface = load_generator()


@pytest.fixture(scope="module")
def rows():
    return list(surface.probe())  # raises ImportError or AttributeError where a name is missing


def test_every_name_imports(rows):
    assert len(rows) > 600


def test_every_absent_method_has_a_reason(rows):
    assert {row.name: row.unexplained for row in rows if row.unexplained} == {}


def test_the_page_lists_what_is_installed():
    assert (ROOT / "docs" / "surface.md").read_text() == surface.page()


def test_using_a_refused_name_raises_its_message(rows):
    refused = [row for row in rows if row.status != "works"]
    for row in refused[::7]:
        value = getattr(importlib.import_module(row.module), row.name)
        with pytest.raises(NotOffered, match=row.name):
            value()


def test_targets_of_the_table_exist():
    for module in table():
        for name, target in names_of(module).items():
            if not target.startswith("!"):
                assert deepspeed.legacy.resolve(target, f"{module}.{name}") is not None, name


def test_a_name_nobody_knows_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        deepspeed.comm.no_such_name  # noqa: B018
    with pytest.raises(ImportError):
        importlib.import_module("deepspeed.no_such_module")
