"""The shape of a counting rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ds_profiler.cost import FREE, Cost

Args = tuple[Any, ...]  # what an operator is called with: tensors, numbers, lists of either
Kwargs = dict[str, Any]
Rule = Callable[[Args, Kwargs, Any], Cost]
"""`rule(args, kwargs, out)`: what the call that returned `out` costs, told from shapes alone."""


def free(args: Args, kwargs: Kwargs, out: Any) -> Cost:
    """Moves, makes or compares data; computes nothing."""
    return FREE


def argument(args: Args, kwargs: Kwargs, index: int, name: str, default: Any = None) -> Any:
    """An argument that may have come by position or by name."""
    return args[index] if index < len(args) else kwargs.get(name, default)
