"""Makes the modules of the legacy table importable, each when it is first imported."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ds_core.errors import DSError

Names = Mapping[str, str]
ROOT = "deepspeed"


@cache
def table() -> dict[str, Names | str]:
    """Every legacy module: its names, or the real module it stands for."""
    package = importlib.import_module("deepspeed.legacy")
    merged: dict[str, dict[str, str] | str] = {}
    for info in pkgutil.iter_modules(package.__path__):
        if info.name == "finder":
            continue
        part = importlib.import_module(f"deepspeed.legacy.{info.name}").NAMES
        for module, names in part.items():
            have = merged.get(module)
            if isinstance(names, str) or isinstance(have, str):
                merged[module] = names
            else:
                merged[module] = {**(have or {}), **names}
    parents: set[str] = set()
    for module in merged:
        while "." in module:
            module = module.rpartition(".")[0]
            parents.add(module)
    for parent in parents - {ROOT}:
        merged.setdefault(parent, {})
    return dict(merged)


def names_of(module: str) -> Names:
    """The names that the table gives a module; none for a real one."""
    names = table().get(module, {})
    return {} if isinstance(names, str) else names


class NotOffered(DSError, NotImplementedError):
    """A name that programs know and that this release does not offer."""


def resolve(target: str, where: str) -> Any:
    """What a table entry stands for; for a refusal, a class that raises when it is used."""
    if target.startswith("!"):
        return refusal(where, target[1:].strip())
    module, _, attribute = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing.startswith("ds_"):
            package = missing.replace("_", "-")
            return refusal(
                where, f"needs {package}: pip install {package} (from a clone: packages/{package})"
            )
        raise
    for part in attribute.split(".") if attribute else ():
        found = getattr(found, part)
    return found


def refusal(where: str, reason: str) -> type:
    """Stands in for a name that is not offered: importing it is harmless, using it explains."""

    def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
        raise NotOffered(f"{where}: {reason}")

    name = where.rpartition(".")[2]
    return type(name, (), {"__new__": refuse, "__doc__": f"Not offered: {reason}"})


def fallback(module: str) -> Callable[[str], Any]:
    """A `__getattr__` for a real module that also serves the names the table gives it."""

    def look_up(name: str) -> Any:
        target = None if name.startswith("_") else names_of(module).get(name)
        if target is None:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return resolve(target, f"{module}.{name}")

    return look_up


class LegacyModule(ModuleType):
    """A module whose names are looked up in the table when they are used."""

    def __getattr__(self, name: str) -> Any:
        path = f"{self.__name__}.{name}"
        if name.startswith("__"):
            raise AttributeError(path)
        names = names_of(self.__name__)
        if name in names:
            value = resolve(names[name], path)
        elif path in table():
            value = importlib.import_module(path)
        else:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        children = [m.rpartition(".")[2] for m in table() if m.rpartition(".")[0] == self.__name__]
        return sorted({*super().__dir__(), *names_of(self.__name__), *children})


class LegacyFinder(MetaPathFinder, Loader):
    """Finds modules of the table that are no files of ours."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{ROOT}.") or fullname not in table():
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        real = table()[spec.name]
        if isinstance(real, str):
            module = resolve(real, spec.name)
            assert isinstance(module, ModuleType)
            return _Alias(spec.name, module)
        module = LegacyModule(spec.name, f"Served from the legacy table of {ROOT}.")
        module.__dict__["__all__"] = [name for name, to in real.items() if not to.startswith("!")]
        return module

    def exec_module(self, module: ModuleType) -> None:
        if isinstance(module, _Alias):
            sys.modules[module.__name__] = module.__dict__["_real"]


class _Alias(ModuleType):
    """Stands in for a real module while it is imported under its old name."""

    def __init__(self, name: str, real: ModuleType) -> None:
        super().__init__(name)
        self.__dict__["_real"] = real


def install() -> None:
    """Put the finder behind Python's own; once."""
    if not any(isinstance(finder, LegacyFinder) for finder in sys.meta_path):
        sys.meta_path.append(LegacyFinder())
