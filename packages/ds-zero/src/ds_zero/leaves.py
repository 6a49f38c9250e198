"""Modules of stage 3 whose parameters are gathered as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch import nn

from ds_core.errors import ConfigError
from ds_zero.params import shard_of
from ds_zero.sections import LeafModuleSection

_MARK = "_ds_leaf"


def set_z3_leaf_modules(
    model: nn.Module,
    leaf_module_classes: Sequence[type[nn.Module] | str],
    raise_if_not_found: bool = True,
) -> list[nn.Module]:
    """Mark modules of these classes (or class names, short or full) as leaves; returns them."""
    found = [m for m in model.modules() if _is_of(m, leaf_module_classes)]
    return _mark(found, True, raise_if_not_found, f"of a class in {list(leaf_module_classes)}")


def unset_z3_leaf_modules(
    model: nn.Module,
    leaf_module_classes: Sequence[type[nn.Module] | str],
    raise_if_not_found: bool = True,
) -> list[nn.Module]:
    """Undo `set_z3_leaf_modules`."""
    found = [m for m in model.modules() if _is_of(m, leaf_module_classes)]
    return _mark(found, False, raise_if_not_found, f"of a class in {list(leaf_module_classes)}")


def set_z3_leaf_modules_by_name(
    model: nn.Module,
    module_names: Sequence[str],
    flag: bool = True,
    raise_if_not_found: bool = True,
) -> tuple[list[nn.Module], list[str]]:
    """Mark modules by their dotted names; returns them, and the names nobody has."""
    return _by(model, module_names, lambda name, wanted: name == wanted, flag, raise_if_not_found)


def set_z3_leaf_modules_by_suffix(
    model: nn.Module,
    module_name_suffixes: Sequence[str],
    flag: bool = True,
    raise_if_not_found: bool = True,
) -> tuple[list[nn.Module], list[str]]:
    """Mark modules by the ends of their dotted names; returns them, and the unused ends."""
    return _by(model, module_name_suffixes, str.endswith, flag, raise_if_not_found)


def set_z3_leaf_module(model: nn.Module, flag: bool) -> None:
    """Mark one module, or take the mark back."""
    model.__dict__[_MARK] = flag


def z3_leaf_module(model: nn.Module) -> bool:
    """Whether a module is marked as a leaf."""
    return bool(model.__dict__.get(_MARK, False))


def get_z3_leaf_modules(model: nn.Module) -> list[nn.Module]:
    """The marked modules of `model`."""
    return [module for module in model.modules() if z3_leaf_module(module)]


def find_leaves(
    model: nn.Module, section: LeafModuleSection, *, granularity: int = 0
) -> list[nn.Module]:
    """Marked modules, those the section names, and those too fine to gather piece by piece."""
    names = dict(model.named_modules())
    found = {id(m): m for m in model.modules() if z3_leaf_module(m) or _is_of(m, section.classes)}
    for name, module in names.items():
        if name in section.names or any(name.endswith(end) for end in section.name_suffixes):
            found[id(module)] = module
    if granularity > 0:
        found.update({id(m): m for m in model.modules() if _is_fine(m, granularity)})
    inside = {id(c) for m in found.values() for c in m.modules() if c is not m}
    return [module for key, module in found.items() if key not in inside]


def _is_fine(module: nn.Module, threshold: int) -> bool:
    """Parameters a module of the tree below, the module itself included, are below `threshold`."""
    descendants = sum(1 for _ in module.modules()) - 1
    total = sum(s.numel if (s := shard_of(p)) else p.numel() for p in module.parameters())
    return descendants > 0 and 0 < total / (1 + descendants) < threshold


def _is_of(module: nn.Module, classes: Sequence[type[nn.Module] | str]) -> bool:
    cls = type(module)
    names = {cls.__name__, f"{cls.__module__}.{cls.__qualname__}"}
    return any(cls is wanted or wanted in names for wanted in classes)


def _by(
    model: nn.Module,
    wanted: Sequence[str],
    matches: Callable[[str, str], bool],
    flag: bool,
    strict: bool,
) -> tuple[list[nn.Module], list[str]]:
    names = dict(model.named_modules())
    found = {text: [m for n, m in names.items() if n and matches(n, text)] for text in wanted}
    missing = [text for text, modules in found.items() if not modules]
    if missing and strict:
        raise ConfigError(f"no module is called {missing}; known: {sorted(filter(None, names))}")
    modules = list({id(m): m for each in found.values() for m in each}.values())
    return _mark(modules, flag, False, ""), missing


def _mark(modules: Iterable[nn.Module], flag: bool, strict: bool, what: str) -> list[nn.Module]:
    found = list(modules)
    if not found and strict:
        raise ConfigError(f"no module {what} found")
    for module in found:
        set_z3_leaf_module(module, flag)
    return found


def z3_leaf_parameter(model: nn.Parameter) -> bool:
    """Whether a parameter is gathered as part of a leaf module."""
    shard = shard_of(model)
    return shard is not None and shard.in_leaf
