"""Arithmetic of pieces: which stretches of flat tensors cover, overlap and meet which."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Overlap:
    """`numel` elements that a stored piece and a wanted range share.

    Attributes:
        index: which piece.
        piece_offset: first shared element, counted from the start of the piece.
        range_offset: the same element, counted from the start of the range.
    """

    index: int
    piece_offset: int
    range_offset: int
    numel: int


def numel_of(shape: Sequence[int]) -> int:
    """Number of elements of a tensor of this shape; 1 for a scalar."""
    total = 1
    for size in shape:
        total *= size
    return total


def cover_fault(spans: Sequence[tuple[int, int]], total: int) -> str | None:
    """Why `(start, numel)` spans, sorted by start, fail to cover `0 .. total` exactly once.

    Returns None if they do. Empty spans cover nothing and disturb nothing.
    """
    reached = 0
    for start, numel in spans:
        if numel == 0:
            continue
        if start > reached:
            return f"elements {reached} to {start - 1} of {total} are in no piece"
        if start < reached:
            last = min(reached, start + numel) - 1
            return f"elements {start} to {last} of {total} are in two pieces"
        reached = start + numel
    if reached < total:
        return f"elements {reached} to {total - 1} of {total} are in no piece"
    if reached > total:
        return f"elements {total} to {reached - 1} lie beyond the end at {total}"
    return None


def overlaps(
    starts: Sequence[int], numels: Sequence[int], start: int, numel: int
) -> Iterator[Overlap]:
    """The pieces that hold `start .. start + numel`, in order.

    `starts` are sorted and the pieces do not overlap (see `cover_fault`).
    """
    stop = start + numel
    index = max(0, bisect_right(starts, start) - 1)
    while index < len(starts) and starts[index] < stop:
        first = max(start, starts[index])
        last = min(stop, starts[index] + numels[index])
        if first < last:
            yield Overlap(index, first - starts[index], first - start, last - first)
        index += 1
