"""Best-fit-decreasing bin packing of integer lengths, many equal items at a time."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def best_fit(sizes: Ints, order: Ints, budget: int, max_count: int) -> Ints:
    """Pack items into as few bins of `budget` as best-fit-decreasing needs.

    Bins with the same room are interchangeable, so items of one size are placed in whole groups
    and the time depends on how many distinct sizes there are, not on how many items.

    Args:
        sizes: positive, at most `budget` each.
        order: item indices from the largest size to the smallest; ties in any order.
        max_count: most items in a bin.

    Returns:
        The bin of each item of `order`, numbered from 0.
    """
    ordered = sizes[order]
    edges = np.flatnonzero(np.diff(ordered)) + 1
    bounds = [0, *edges.tolist(), len(order)]
    bins = _Bins(budget, max_count)
    bin_of = np.empty(len(order), dtype=np.int64)
    for begin, end in pairwise(bounds):
        if begin < end:
            bins.place(bin_of[begin:end], int(ordered[begin]))
    return bin_of


class _Bins:
    """Open bins, grouped by (room left, items inside)."""

    def __init__(self, budget: int, max_count: int) -> None:
        self._budget = budget
        self._max_count = max_count
        self._keys: list[tuple[int, int]] = []  # sorted (room, items)
        self._members: dict[tuple[int, int], list[Ints]] = {}
        self._next_bin = 0

    def place(self, out: Ints, size: int) -> None:
        """Place `len(out)` items of one size; write the bin of each into `out`."""
        done = 0
        while done < len(out):
            at = bisect_left(self._keys, (size, -1))
            key = self._keys[at] if at < len(self._keys) else None
            if key is None:
                self._open(out[done:], size)
                return
            room, items = key
            each = min(room // size, self._max_count - items)
            members = self._take(at, -(-(len(out) - done) // each))
            done += self._fill(out[done:], size, members, key, each)

    def _open(self, out: Ints, size: int) -> None:
        each = min(self._budget // size, self._max_count)
        number = -(-len(out) // each)
        members = np.arange(self._next_bin, self._next_bin + number, dtype=np.int64)
        self._next_bin += number
        self._fill(out, size, members, (self._budget, 0), each)

    def _fill(self, out: Ints, size: int, members: Ints, key: tuple[int, int], each: int) -> int:
        """Give each of `members` up to `each` items; the last one may get fewer."""
        count = min(len(out), len(members) * each)
        out[:count] = np.repeat(members, each)[:count]
        room, items = key
        whole, rest = divmod(count, each)
        self._put((room - each * size, items + each), members[:whole])
        if rest:
            self._put((room - rest * size, items + rest), members[whole : whole + 1])
        return count

    def _put(self, key: tuple[int, int], members: Ints) -> None:
        if not len(members) or key[0] <= 0 or key[1] >= self._max_count:
            return
        if key not in self._members:
            insort(self._keys, key)
            self._members[key] = []
        self._members[key].append(members)

    def _take(self, at: int, number: int) -> Ints:
        """Take up to `number` bins from the group at position `at`."""
        key = self._keys[at]
        stock = self._members[key]
        members = stock.pop()
        if len(members) > number:
            stock.append(members[number:])
            members = members[:number]
        if not stock:
            del self._members[key], self._keys[at]
        return members
