"""Plan which samples form which micro-batch, by tokens instead of by count (pure arithmetic)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from ds_data.best_fit import best_fit
from ds_data.errors import RuleError
from ds_data.next_fit import cut_padded, cut_unpadded

Ints = npt.NDArray[np.int64]
Order = Literal["dataloader", "seqlen", "random", "bucketed", "best_fit"]
ORDERS = ("dataloader", "seqlen", "random", "bucketed", "best_fit")


@dataclass(frozen=True, kw_only=True)
class BatchRules:
    """What a micro-batch may look like.

    Attributes:
        max_tokens: budget of a micro-batch.
        order: how samples are picked. `dataloader`: as they come; `seqlen`: short to long;
            `random`: shuffled; `bucketed`: shuffled, then sorted inside windows of `window`
            samples, then batches shuffled; `best_fit`: as little waste as possible (padded count:
            like lengths together; unpadded count: bin packing), ties and batches shuffled.
        count: what the budget counts. `padded`: samples times the longest of them (what a padded
            batch costs); `unpadded`: the sum of lengths (what a packed batch costs).
        min_batch_size: a micro-batch with fewer samples is left out and reported.
        max_batch_size: a micro-batch is closed at this many samples.
        max_length: longest sample kept; `max_tokens` if None.
        too_long: whether a longer sample is left out and reported, or an error.
        same_size: all micro-batches of a batch have the same number of samples.
        same_length: all micro-batches of a batch are padded to the batch's longest sample. With
            the padded count this implies `same_size`.
        drop_last: leave out the last, incomplete batch; otherwise its micro-batches are split
            until there are enough of them.
        window: how random `bucketed` stays: each batch comes from `window` samples drawn at random
            and holds neighbours by length among those. 1 equals `random`, the size of the data
            set equals `best_fit` for padded batches.
        seed: of every random choice, together with the epoch.
    """

    max_tokens: int
    order: Order = "dataloader"
    count: Literal["padded", "unpadded"] = "padded"
    min_batch_size: int = 1
    max_batch_size: int | None = None
    max_length: int | None = None
    too_long: Literal["skip", "error"] = "skip"
    same_size: bool = False
    same_length: bool = False
    drop_last: bool = True
    window: int = 4096
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"max_tokens": self.max_tokens, "min_batch_size": self.min_batch_size}
        least |= {"window": self.window, "max_batch_size": self.max_batch_size or 1}
        if self.max_length is not None:
            least["max_length"] = self.max_length
        for name, value in least.items():
            if not value >= 1:  # NaN neither
                raise RuleError(f"{name} is {value}: it must be at least 1")
        if self.seed < 0:
            raise RuleError(f"seed is {self.seed}: it must not be negative")
        if self.max_batch_size is not None and self.max_batch_size < self.min_batch_size:
            raise RuleError(
                f"max_batch_size {self.max_batch_size} is below min_batch_size "
                f"{self.min_batch_size}: no batch can satisfy both"
            )
        if self.order not in ORDERS:
            raise RuleError(f"order is {self.order!r}: expected one of {', '.join(ORDERS)}")
        if self.count not in ("padded", "unpadded"):
            raise RuleError(f"count is {self.count!r}: expected 'padded' or 'unpadded'")
        if self.too_long not in ("skip", "error"):
            raise RuleError(f"too_long is {self.too_long!r}: expected 'skip' or 'error'")

    @property
    def limit(self) -> int:
        """The longest sample that a micro-batch may hold."""
        return min(self.max_tokens, self.max_length or self.max_tokens)

    @property
    def equal_sizes(self) -> bool:
        return self.same_size or (self.same_length and self.count == "padded")


@dataclass(frozen=True, eq=False)
class Skipped:
    """Samples that are in no batch, by the rule that left them out."""

    too_long: Ints
    too_few: Ints  # their micro-batch was below min_batch_size
    last: Ints  # the incomplete end

    def __len__(self) -> int:
        return len(self.too_long) + len(self.too_few) + len(self.last)


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """Micro-batches in training order; every `micro_batches` of them are one effective batch.

    Attributes:
        ids: sample ids, micro-batch after micro-batch.
        edges: micro-batch `i` is `ids[edges[i]:edges[i + 1]]`.
        micro_batches: how many form an effective batch (one optimizer step over all ranks).
        tokens: sum of lengths of each micro-batch.
        longest: longest sample of each micro-batch.
        skipped: what is left out, and why.
    """

    ids: Ints
    edges: Ints
    micro_batches: int
    tokens: Ints
    longest: Ints
    skipped: Skipped

    def __len__(self) -> int:
        """Number of effective batches."""
        return (len(self.edges) - 1) // self.micro_batches

    def micro_batch(self, index: int) -> list[int]:
        return self.ids[self.edges[index] : self.edges[index + 1]].tolist()  # type: ignore[no-any-return]

    @cached_property
    def sizes(self) -> Ints:
        """Samples in each micro-batch."""
        return np.diff(self.edges)

    @cached_property
    def batch_sizes(self) -> Ints:
        """Samples in each effective batch: what the learning rate follows."""
        return np.diff(self.edges[:: self.micro_batches])

    @cached_property
    def batch_longest(self) -> Ints:
        """Longest sample of each effective batch."""
        longest: Ints = self.longest.reshape(-1, self.micro_batches).max(axis=1, initial=0)
        return longest

    def token_weights(self) -> npt.NDArray[np.float64]:
        """Weight of each micro-batch's mean loss that turns a plain mean into a token mean."""
        table = self.tokens.reshape(-1, self.micro_batches).astype(np.float64)
        return np.ravel(table / table.mean(axis=1, keepdims=True))

    def useful_share(self) -> float:
        """Real tokens per token of the padded micro-batches."""
        padded = int((self.sizes * self.longest).sum())
        return int(self.tokens.sum()) / padded if padded else 1.0


def plan_batches(
    lengths: Ints | Sequence[int],
    rules: BatchRules,
    *,
    micro_batches: int = 1,
    ids: Ints | Sequence[int] | None = None,
    epoch: int | tuple[int, ...] = 0,
) -> BatchPlan:
    """Distribute samples over batches of `micro_batches` micro-batches each.

    Args:
        lengths: length of every sample of the data set.
        rules: what a micro-batch may look like.
        micro_batches: ranks times accumulation steps. Each effective batch has exactly this many.
        ids: the samples to use, in data-loader order; all if None.
        epoch: mixed into the seed.

    Returns:
        A plan that holds every sample once, except those in `plan.skipped`.

    Raises:
        RuleError: a length is not positive, `micro_batches` is not, or a sample is too long and
            the rules say that this is an error.
    """
    if micro_batches < 1:
        raise RuleError(f"micro_batches is {micro_batches}: it must be at least 1")
    every = as_lengths(lengths)
    chosen = np.arange(len(every)) if ids is None else np.asarray(ids, dtype=np.int64)
    if len(chosen) and not 0 <= int(chosen.min()) <= int(chosen.max()) < len(every):
        raise RuleError(
            f"ids reach from {chosen.min()} to {chosen.max()}: there are {len(every)} samples"
        )
    mine = every if ids is None else every[chosen]
    if len(mine) and int(mine.min()) < 1:
        worst = int(chosen[int(mine.argmin())])
        raise RuleError(f"sample {worst} has length {every[worst]}: lengths start at 1")
    kept, too_long = _within_length(chosen, mine, rules)
    random = np.random.default_rng([rules.seed, *np.atleast_1d(epoch).tolist()])
    group = _equal_groups if rules.equal_sizes else _free_packs
    return group(kept, every, rules, micro_batches, random, too_long)


def as_lengths(lengths: Ints | Sequence[int]) -> Ints:
    """One whole number a sample, as an array."""
    given = np.asarray(lengths)
    with np.errstate(invalid="ignore"):
        whole = given.astype(np.int64) if given.dtype.kind in "iuf" else None
    if whole is None or given.ndim != 1 or not bool((whole == given).all()):
        raise RuleError(
            f"lengths are whole numbers, one a sample: got {given.dtype.name} of shape "
            f"{given.shape}"
        )
    return np.ascontiguousarray(whole)


def _within_length(chosen: Ints, mine: Ints, rules: BatchRules) -> tuple[Ints, Ints]:
    limit = rules.limit
    if not len(mine) or int(mine.max()) <= limit:
        return chosen, chosen[:0]
    over = mine > limit
    if rules.too_long == "error":
        first = int(chosen[over][0])
        raise RuleError(
            f"sample {first} has length {int(mine[over][0])}, the limit is {limit} "
            f"({int(over.sum())} such samples): raise max_tokens, or let them be skipped"
        )
    return chosen[~over], chosen[over]


def _by_length(lengths: Ints) -> Ints:
    """Stable order from short to long (radix sort where 16 bits hold the lengths)."""
    if len(lengths) and int(lengths.max()) < 1 << 16:
        return np.argsort(lengths.astype(np.uint16), kind="stable")
    return np.argsort(lengths, kind="stable")


def _arranged(
    chosen: Ints, lengths: Ints, rules: BatchRules, random: np.random.Generator
) -> tuple[Ints, Ints]:
    """The samples in picking order, with their lengths."""
    if rules.order in ("random", "bucketed", "best_fit"):
        chosen = chosen[random.permutation(len(chosen))]
    sizes = lengths[chosen]
    if rules.order in ("dataloader", "random"):
        return chosen, sizes
    if rules.order == "bucketed":
        window = np.arange(len(chosen)) // rules.window
        order = np.argsort(window * (int(sizes.max(initial=0)) + 1) + sizes, kind="stable")
    else:
        order = _by_length(sizes)
    return chosen[order], sizes[order]


def _free_packs(
    chosen: Ints,
    lengths: Ints,
    rules: BatchRules,
    micro_batches: int,
    random: np.random.Generator,
    too_long: Ints,
) -> BatchPlan:
    """Micro-batches cut one by one, then taken `micro_batches` at a time."""
    ids, sizes = _arranged(chosen, lengths, rules, random)
    most = rules.max_batch_size or max(1, len(ids))
    if rules.order == "best_fit" and rules.count == "unpadded":
        largest_first = np.arange(len(ids))[::-1]
        bin_of = best_fit(sizes, largest_first, rules.max_tokens, most)
        order = largest_first[np.argsort(bin_of, kind="stable")]
        ids, edges = ids[order], np.append(0, np.cumsum(np.bincount(bin_of)))
    else:
        cut = cut_padded if rules.count == "padded" else cut_unpadded
        edges = cut(sizes, rules.max_tokens, most)
    packs = np.arange(len(edges) - 1)
    few = np.diff(edges) < rules.min_batch_size
    packs, dropped = packs[~few], packs[few]
    if rules.order in ("bucketed", "best_fit"):
        packs = random.permutation(packs)
    whole = len(packs) // micro_batches * micro_batches
    too_few = _gather(ids, edges, dropped)[0]
    tail = [ids[edges[pack] : edges[pack + 1]] for pack in packs[whole:]]
    extra, last = _finish(tail, rules, micro_batches)
    body, body_edges = _gather(ids, edges, packs[:whole])
    if extra:
        more = np.cumsum([len(piece) for piece in extra]) + len(body)
        body, body_edges = np.concatenate([body, *extra]), np.append(body_edges, more)
    return _plan(body, body_edges, lengths, micro_batches, Skipped(too_long, too_few, last))


def _gather(ids: Ints, edges: Ints, packs: Ints) -> tuple[Ints, Ints]:
    """The ids of the named packs in that order, and their edges."""
    if len(packs) == len(edges) - 1 and bool((np.diff(packs) == 1).all()):
        return ids, edges
    starts, sizes = edges[packs], edges[packs + 1] - edges[packs]
    new = np.append(0, np.cumsum(sizes)).astype(np.int64)
    source = np.repeat(starts - new[:-1], sizes) + np.arange(int(new[-1]))
    return ids[source], new


def _finish(tail: list[Ints], rules: BatchRules, wanted: int) -> tuple[list[Ints], Ints]:
    """Split what is left until it fills one more batch; or hand it back as left out."""
    left = np.concatenate(tail) if tail else np.zeros(0, dtype=np.int64)
    if rules.drop_last or not tail:
        return [], left
    pieces = list(tail)
    while len(pieces) < wanted:
        at = max(range(len(pieces)), key=lambda index: len(pieces[index]))
        half = len(pieces[at]) // 2
        if half < rules.min_batch_size:
            return [], left
        pieces[at : at + 1] = [pieces[at][:half], pieces[at][half:]]
    return pieces, left[:0]


def _equal_groups(
    chosen: Ints,
    lengths: Ints,
    rules: BatchRules,
    micro_batches: int,
    random: np.random.Generator,
    too_long: Ints,
) -> BatchPlan:
    """Rows of `micro_batches` samples, one for each micro-batch; a batch is a run of rows."""
    ids, sizes = _arranged(chosen, lengths, rules, random)
    rows = len(ids) // micro_batches
    last, ids, sizes = (
        ids[rows * micro_batches :],
        *(part[: rows * micro_batches] for part in (ids, sizes)),
    )
    most = rules.max_batch_size or max(1, rows)
    if rules.count == "padded":
        widest = sizes.reshape(rows, micro_batches).max(axis=1, initial=0)
        edges = cut_padded(widest, rules.max_tokens, most)
    else:
        edges = cut_unpadded(sizes, rules.max_tokens, most, lanes=micro_batches)
    batches = np.arange(len(edges) - 1)
    few = np.diff(edges) < rules.min_batch_size
    too_few = _gather(ids, edges * micro_batches, batches[few])[0]
    batches = batches[~few]
    if rules.order in ("bucketed", "best_fit"):
        batches = random.permutation(batches)
    ids, edges = _gather(ids, edges * micro_batches, batches)
    per_batch = np.diff(edges)
    batch = np.repeat(np.arange(len(per_batch)), per_batch)
    key = batch * micro_batches + np.arange(len(ids)) % micro_batches
    ids = ids[np.argsort(key, kind="stable")]
    micro_edges = np.append(0, np.cumsum(np.repeat(per_batch // micro_batches, micro_batches)))
    return _plan(ids, micro_edges, lengths, micro_batches, Skipped(too_long, too_few, last))


def _plan(ids: Ints, edges: Ints, lengths: Ints, micro_batches: int, skipped: Skipped) -> BatchPlan:
    sizes, starts = lengths[ids], edges[:-1]
    tokens = np.add.reduceat(sizes, starts) if len(starts) else starts
    longest = np.maximum.reduceat(sizes, starts) if len(starts) else starts
    return BatchPlan(ids, edges, micro_batches, tokens, longest, skipped)
