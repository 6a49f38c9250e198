"""Cut a sequence of lengths into consecutive packs that stay within a token budget."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

_SMALL = 4096  # below this a plain loop is the fastest


def cut_unpadded(lengths: Ints, budget: int, max_count: int, *, lanes: int = 1) -> Ints:
    """Greedy cuts where the lengths of a pack add up to at most `budget`.

    With `lanes > 1`, `len(lengths)` is a multiple of `lanes`, sample `i` belongs to lane
    `i % lanes`, and all lanes are cut at the same rows, each lane within the budget.

    Args:
        lengths: positive and at most `budget` each.
        max_count: most rows in a pack.

    Returns:
        Row offsets of the packs' edges: `0 = edge[0] < edge[1] < ... < edge[-1] = rows`.
    """
    rows = len(lengths) // lanes
    reach = np.arange(rows) + max_count
    np.minimum(reach, rows, out=reach)
    for lane in range(lanes):
        total = np.zeros(rows + 1, dtype=np.int64)
        np.cumsum(lengths[lane::lanes], out=total[1:])
        room = min(budget, int(total[-1]))  # the sum with a huge budget would not fit
        end = np.searchsorted(total, total[:-1] + room, side="right") - 1
        np.minimum(reach, end, out=reach)
    return _follow(reach, rows)


def _follow(reach: Ints, rows: int) -> Ints:
    """Walk `row -> reach[row]` from 0 to the end."""
    following = reach.tolist()
    edges, row = [0], 0
    while row < rows:
        row = following[row]
        edges.append(row)
    return np.asarray(edges, dtype=np.int64)


def cut_padded(lengths: Ints, budget: int, max_count: int) -> Ints:
    """Greedy cuts where `count * longest` of a pack is at most `budget`.

    Args and result as for `cut_unpadded` with one lane. Long runs of equal lengths are cut in
    one piece; otherwise many stretches are cut side by side and then joined.
    """
    size = len(lengths)
    if size < _SMALL:
        return np.flatnonzero(np.append(_cut_plain(lengths.tolist(), budget, max_count), True))
    runs = np.flatnonzero(np.diff(lengths)) + 1
    if len(runs) * 8 < size:
        return _cut_runs(lengths, np.concatenate(([0], runs, [size])), budget, max_count)
    return _cut_side_by_side(lengths, budget, max_count)


def _cut_plain(lengths: list[int], budget: int, max_count: int) -> list[bool]:
    opens = [False] * len(lengths)
    widest = count = 0
    for index, length in enumerate(lengths):
        count += 1
        if length > widest:
            widest = length
        if widest * count > budget or count > max_count:
            opens[index] = True
            widest, count = length, 1
    if opens:
        opens[0] = True
    return opens


def _cut_runs(lengths: Ints, edges_of_runs: Ints, budget: int, max_count: int) -> Ints:
    pieces: list[Ints] = [np.zeros(1, dtype=np.int64)]
    widest = count = 0
    values = lengths[edges_of_runs[:-1]].tolist()
    bounds = edges_of_runs.tolist()
    for value, begin, end in zip(values, bounds[:-1], bounds[1:], strict=True):
        widest = max(widest, value)
        room = min(budget // widest, max_count) - count
        if end - begin <= room:
            count += end - begin
            continue
        first = begin + max(room, 0)  # the open pack ends here; the rest of the run stands alone
        step = min(budget // value, max_count)
        cuts = np.arange(first, end, step, dtype=np.int64)
        pieces.append(cuts)
        widest, count = value, end - int(cuts[-1])
    pieces.append(np.asarray([len(lengths)], dtype=np.int64))
    return np.concatenate(pieces)


def _cut_side_by_side(lengths: Ints, budget: int, max_count: int) -> Ints:
    """Cut many stretches in lockstep, each as if a pack opened at its start, then join them.

    Two greedy walks that share one edge share all later ones, so the true walk, which enters a
    stretch with an open pack, has to be followed only until it meets the guessed one.
    """
    size = len(lengths)
    chains = 1 << (int(size**0.5).bit_length())
    steps = size // chains
    table = lengths[: chains * steps].reshape(chains, steps).T.copy()
    opens, widest, count = _lockstep(table, budget, max_count)
    guesses = np.zeros(size, dtype=bool)
    guesses[: chains * steps] = opens.T.ravel()
    state = (0, 0)
    for chain in range(chains):
        begin, end = chain * steps, (chain + 1) * steps
        met, state = _join(lengths, guesses, (begin, end), state, (budget, max_count))
        if met:
            state = (int(widest[chain]), int(count[chain]))
    _join(lengths, guesses, (chains * steps, size), state, (budget, max_count))
    guesses[0] = True
    return np.append(np.flatnonzero(guesses), size)


def _lockstep(table: Ints, budget: int, max_count: int) -> tuple[npt.NDArray[np.bool_], Ints, Ints]:
    steps, chains = table.shape
    opens = np.empty((steps, chains), dtype=bool)
    widest = np.zeros(chains, dtype=np.int64)
    count = np.zeros(chains, dtype=np.int64)
    filled = np.empty(chains, dtype=np.int64)
    for step in range(steps):
        row, over = table[step], opens[step]
        count += 1
        np.maximum(widest, row, out=widest)
        np.multiply(widest, count, out=filled)
        np.greater(filled, budget, out=over)
        if max_count < steps:
            over |= count > max_count
        np.copyto(widest, row, where=over)
        np.copyto(count, 1, where=over)
    opens[:1] = True
    return opens, widest, count


def _join(
    lengths: Ints,
    guesses: npt.NDArray[np.bool_],
    stretch: tuple[int, int],
    state: tuple[int, int],
    limits: tuple[int, int],
) -> tuple[bool, tuple[int, int]]:
    """Follow the true walk into a stretch until it meets the guess; correct `guesses` in place."""
    (begin, end), (widest, count), (budget, max_count) = stretch, state, limits
    for block in range(begin, end, 64):
        piece = lengths[block : min(block + 64, end)].tolist()
        for index, length in enumerate(piece, block):
            count += 1
            if length > widest:
                widest = length
            if widest * count > budget or count > max_count:
                if guesses[index]:
                    return True, (0, 0)
                guesses[index] = True
                widest, count = length, 1
            else:
                guesses[index] = False
    return False, (widest, count)
