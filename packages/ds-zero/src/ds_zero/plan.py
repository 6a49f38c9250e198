"""Which elements of which tensor a rank owns: pure arithmetic on sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ALIGN = 16
"""Elements to which a rank's share of a bucket is rounded up (64 bytes of fp32)."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Elements `start .. start + length` of tensor `index` lie at `offset` of a flat memory."""

    index: int
    start: int
    length: int
    offset: int


def round_up(number: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `number`."""
    return -(-number // multiple) * multiple


def share(total: int, world: int, *, align: int = 1) -> int:
    """Elements each of `world` ranks holds of `total`, padding included."""
    return round_up(-(-total // world), align) if total else 0


def plan(sizes: Sequence[int], rank: int, world: int, *, align: int = 1) -> tuple[Slice, ...]:
    """The slices of `rank` if the tensors lie end to end and are cut into equal shares.

    Every element belongs to exactly one rank. Offsets count within the rank's share, which has
    `share(sum(sizes), world, align=align)` elements; the last shares may be padded.
    """
    _check(rank, world)
    length = share(sum(sizes), world, align=align)
    return overlap(sizes, rank * length, (rank + 1) * length)


def plan_each(sizes: Sequence[int], rank: int, world: int) -> tuple[Slice, ...]:
    """The slices of `rank` if each tensor is cut into equal shares of its own.

    Each tensor takes `share(size, world)` elements of the rank's flat memory, one after the
    other, padding included; a slice may have length 0.
    """
    _check(rank, world)
    slices, offset = [], 0
    for index, size in enumerate(sizes):
        length = share(size, world)
        start = min(rank * length, size)
        slices.append(Slice(index, start, min(length, size - start), offset))
        offset += length
    return tuple(slices)


def overlap(sizes: Sequence[int], begin: int, end: int) -> tuple[Slice, ...]:
    """The non-empty slices of tensors laid end to end that lie in `begin .. end`."""
    slices, position = [], 0
    for index, size in enumerate(sizes):
        low, high = max(begin, position), min(end, position + size)
        if low < high:
            slices.append(Slice(index, low - position, high - low, low - begin))
        position += size
    return tuple(slices)


def cut(slices: Sequence[Slice], begin: int, end: int) -> tuple[Slice, ...]:
    """The parts of `slices` at memory `begin .. end`, with offsets counted from `begin`."""
    found = []
    for piece in slices:
        low, high = max(begin, piece.offset), min(end, piece.offset + piece.length)
        if low < high:
            start = piece.start + low - piece.offset
            found.append(Slice(piece.index, start, high - low, low - begin))
    return tuple(found)


def buckets(sizes: Sequence[int], limit: int) -> Iterator[tuple[int, ...]]:
    """Consecutive indices whose sizes add up to at most `limit`; a larger tensor is alone."""
    filling: list[int] = []
    total = 0
    for index, size in enumerate(sizes):
        if filling and total + size > limit:
            yield tuple(filling)
            filling, total = [], 0
        filling.append(index)
        total += size
    if filling:
        yield tuple(filling)


def bucket_limit(setting: int, total: int, *, floor: int = 1 << 21) -> int:
    """Elements of a bucket: the setting, or less where that lets communication overlap.

    A sixteenth of the model keeps the last reduction short; below two million elements latency
    outweighs the overlap. The setting is an upper bound always.
    """
    return max(1, min(setting, max(total // 16, floor)))


def _check(rank: int, world: int) -> None:
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} is outside of 0..{world - 1}")
