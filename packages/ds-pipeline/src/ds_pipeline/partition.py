"""Dividing layers into stages; pure functions of weights."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ds_pipeline.errors import PartitionError


def balanced(weights: Sequence[float], parts: int) -> list[int]:
    """Bounds of `parts` runs of items whose heaviest run is as light as can be.

    No run is empty. Among the divisions with the lightest maximum, the one with the smallest sum
    of squares is taken, then the one with the most even numbers of items. Exact, by dynamic
    programming in O(parts * items^2).

    >>> balanced([1, 1, 1, 1, 1], 4)
    [0, 1, 2, 3, 5]
    """
    items = len(weights)
    _check(items, parts)
    values = np.asarray(weights, dtype=np.float64)
    if not np.isfinite(values).all() or (values < 0).any():
        raise PartitionError(f"weights must be finite and not negative, got {list(weights)}")
    ends = np.concatenate([[0.0], np.cumsum(values)])
    load = ends[None, :] - ends[:, None]  # load[i, j]: items i to j - 1
    positions = np.arange(items + 1)
    length = positions[None, :] - positions[:, None]
    best = _lightest_maximum(np.where(length > 0, load, np.inf), parts)
    mean = float(ends[-1]) / items
    even = length**2 * (1e-9 * mean * mean if mean > 0 else 1.0)
    cost = np.where((length > 0) & (load <= best), load**2 + even, np.inf)
    return _cheapest(cost, parts)


def _lightest_maximum(load: NDArray[np.float64], parts: int) -> float:
    reached = load[0]
    for _ in range(parts - 1):
        reached = np.maximum(reached[:, None], load).min(axis=0)
    return float(reached[-1])


def _cheapest(cost: NDArray[np.float64], parts: int) -> list[int]:
    reached, choices = cost[0], []
    for _ in range(parts - 1):
        through = reached[:, None] + cost
        choices.append(through.argmin(axis=0))
        reached = through.min(axis=0)
    bounds = [len(reached) - 1]
    for choice in reversed(choices):
        bounds.append(int(choice[bounds[-1]]))
    return [0, *reversed(bounds)]


def uniform(items: int, parts: int) -> list[int]:
    """Bounds of runs whose numbers of items differ by at most one, longer ones first.

    >>> uniform(5, 4)
    [0, 2, 3, 4, 5]
    """
    _check(items, parts)
    share, longer = divmod(items, parts)
    return [part * share + min(part, longer) for part in range(parts + 1)]


def explicit(bounds: Sequence[int], items: int, parts: int) -> list[int]:
    """`bounds` themselves, if they divide `items` into `parts` runs; runs may be empty."""
    given = [int(bound) for bound in bounds]
    steps = all(left <= right for left, right in itertools.pairwise(given))
    if len(given) != parts + 1 or given[0] != 0 or given[-1] != items or not steps:
        raise PartitionError(
            f"bounds {given} do not divide {items} layers into {parts} stages: give {parts + 1} "
            f"numbers that rise from 0 to {items}"
        )
    return given


def matches(names: Sequence[str], pattern: str) -> list[int]:
    """1 for each class name that `pattern` is found in (any case), 0 for the others."""
    found = [int(re.search(pattern, name, re.IGNORECASE) is not None) for name in names]
    if not any(found):
        raise PartitionError(
            f"partition_method 'type:{pattern}' matches none of the layers: "
            + ", ".join(sorted(set(names)))
        )
    return found


def _check(items: int, parts: int) -> None:
    if parts < 1:
        raise PartitionError(f"{parts} stages: there must be at least one")
    if items < parts:
        raise PartitionError(
            f"{items} layers cannot fill {parts} stages; use at most {items}, or give the bounds "
            "of the stages yourself (a stage between equal bounds passes its input on)"
        )
