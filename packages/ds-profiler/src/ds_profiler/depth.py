"""Room on the stack for models that nest deeper than Python's recursion limit expects."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

MOST = 3000
"""Levels beyond which none is made: the C stack ends too."""

_FRAMES = 24
"""Python frames of one level at most: a module's call with marks around it, or its JSON."""


@contextmanager
def room_for(depth: int) -> Iterator[None]:
    """Inside, recursion over `depth` levels is allowed on top of what was."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(limit + _FRAMES * min(depth, MOST))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def depth_of(root: nn.Module) -> int:
    """Levels of modules below `root`, one for itself."""
    deepest, left, seen = 0, [(1, root)], {root}
    while left:
        depth, module = left.pop()
        deepest = max(deepest, depth)
        children = {child for child in module._modules.values() if child is not None} - seen
        seen |= children
        left += [(depth + 1, child) for child in children]
    return deepest
