"""A data loader over planned batches that resumes exactly where it stopped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np
from torch.utils.data import DataLoader, Dataset

from ds_data.errors import RuleError
from ds_data.packing import BatchPlan, BatchRules, Ints, as_lengths, plan_batches

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """How samples are fetched; nothing here changes which samples form a batch."""

    collate_fn: Callable[[list[Any]], Any] | None = None
    pad_sample: Callable[[Any, int], Any] | None = None  # required by `same_length`
    num_workers: int = 0
    pin_memory: bool = False


class VariableBatchLoader:
    """Yields this rank's micro-batches; every `accumulation_steps` of them are one batch.

    Micro-batch `m` of a batch goes to rank `m % world_size`, so the plan does not depend on the
    number of ranks, and a run may resume with another one. `state_dict` counts what was handed
    out, not what workers have fetched ahead. Samples that are too long are the same in every
    epoch: rank 0 warns of them once, with the first plan.

    Args:
        dataset: map-style; `dataset[i]` is one sample.
        lengths: length of every sample.
        rules: what a micro-batch may look like.
        micro_batches: micro-batches in an effective batch over all ranks.
        ids: the samples to use (a curriculum, a split); all if None.
    """

    def __init__(
        self,
        dataset: Any,  # anything with __getitem__, torch's Dataset or not
        lengths: Ints | Sequence[int],
        rules: BatchRules,
        *,
        micro_batches: int = 1,
        rank: int = 0,
        world_size: int = 1,
        ids: Ints | Sequence[int] | None = None,
        options: LoaderOptions | None = None,
    ) -> None:
        if not 0 <= rank < world_size:
            raise RuleError(f"rank {rank} does not lie in a world of {world_size}")
        if micro_batches % world_size:
            raise RuleError(
                f"{micro_batches} micro-batches cannot be dealt evenly to {world_size} ranks"
            )
        self.options = options or LoaderOptions()
        if rules.same_length and self.options.pad_sample is None:
            raise RuleError("same_length needs pad_sample(sample, length) in the loader's options")
        self._dataset = dataset
        self._lengths = as_lengths(lengths)
        if hasattr(dataset, "__len__") and len(dataset) != len(self._lengths):
            raise RuleError(
                f"{len(self._lengths)} lengths are given for {len(dataset)} samples: there is one "
                "for each; `ids` says which to use"
            )
        self._rules = rules
        self._ids = ids
        self._rank, self._world_size = rank, world_size
        self.micro_batches = micro_batches
        self._epoch = 0
        self._resumed = False
        self._segments: list[tuple[int, int]] = [(micro_batches, 0)]
        self._plan: BatchPlan | None = None
        self._told = rank != 0

    @property
    def accumulation_steps(self) -> int:
        return self.micro_batches // self._world_size

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def plan(self) -> BatchPlan:
        """The batches of this epoch; after a resume with another number of micro-batches, the
        batches that were left."""
        if self._plan is None:
            ids = self._ids
            for segment, (micro_batches, done) in enumerate(self._segments[:-1]):
                before = self._make(micro_batches, ids, segment)
                rest = before.ids[before.edges[done] :]
                ids = np.concatenate([rest, before.skipped.last, before.skipped.too_few])
            self._plan = self._make(self._segments[-1][0], ids, len(self._segments) - 1)
        return self._plan

    def _make(self, micro_batches: int, ids: Any, segment: int) -> BatchPlan:
        plan = plan_batches(
            self._lengths,
            self._rules,
            micro_batches=micro_batches,
            ids=ids,
            epoch=(self._epoch, segment) if segment else self._epoch,
        )
        if not self._told:
            self._tell_too_long(plan)
        return plan

    def _tell_too_long(self, plan: BatchPlan) -> None:
        self._told = True
        over = plan.skipped.too_long
        if len(over):
            log.warning(
                "%d of %d samples are longer than the limit of %d and left out (first: %s): raise "
                "max_tokens or max_length, split them, or have BatchRules(too_long='error') raise",
                len(over),
                len(plan.ids) + len(plan.skipped),
                self._rules.limit,
                over[:8].tolist(),
            )

    def batch_sizes(self) -> Sequence[int]:
        """Samples of each effective batch of this epoch (for `VariableBatchLR`)."""
        return self.plan.batch_sizes  # type: ignore[return-value]

    def first_batch(self) -> int:
        """The effective batch that the coming iteration begins with: 0, except after a resume."""
        return self._segments[-1][1] // self.micro_batches if self._resumed else 0

    def token_count(self) -> int:
        """Real tokens of the micro-batch handed out last: its weight in a mean over tokens."""
        return int(self.plan.tokens[self._last()])

    def _last(self) -> int:
        done = self._segments[-1][1]
        if done < self._world_size:
            raise RuleError("no micro-batch of this epoch was handed out yet")
        return done - self._world_size + self._rank

    def token_weight(self) -> float:
        """`token_count` over the mean of its batch: losses times their weights average to the
        mean over tokens."""
        plan, last = self.plan, self._last()
        begin = last // self.micro_batches * self.micro_batches
        batch = plan.tokens[begin : begin + self.micro_batches]
        return float(plan.tokens[last] / batch.mean())

    def set_epoch(self, epoch: int) -> None:
        """Start `epoch` from its beginning; no effect if it is the one already under way."""
        if epoch < 0:
            raise RuleError(f"epoch is {epoch}: it must not be negative")
        if epoch != self._epoch:
            self._begin(epoch)

    def _begin(self, epoch: int) -> None:
        self._epoch, self._plan = epoch, None
        self._segments = [(self.micro_batches, 0)]
        self._resumed = False

    def __len__(self) -> int:
        """Micro-batches of this epoch (what is left of it after a resume) for this rank."""
        done = self._segments[-1][1] if self._resumed else 0
        return (len(self.plan) * self.micro_batches - done) // self._world_size

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the epoch, from where `load_state_dict` left it if that came just before.

        The end of the data starts the next epoch, with its own order.
        """
        if not self._resumed and self._segments != [(self.micro_batches, 0)]:
            self._begin(self._epoch)
        self._resumed = False
        plan, done = self.plan, self._segments[-1][1]
        for batch in self._torch_loader(plan, done):
            done += self._world_size
            self._segments[-1] = (self.micro_batches, done)
            yield batch
        self._begin(self._epoch + 1)

    def _torch_loader(self, plan: BatchPlan, done: int) -> DataLoader[Any]:
        options = self.options
        dataset = self._dataset
        if self._rules.same_length and options.pad_sample is not None:
            dataset = _Padded(dataset, options.pad_sample)
        return DataLoader(
            dataset,
            batch_sampler=_MicroBatches(
                plan,
                range(done + self._rank, len(plan) * plan.micro_batches, self._world_size),
                with_length=self._rules.same_length,
            ),
            collate_fn=options.collate_fn,
            num_workers=options.num_workers,
            pin_memory=options.pin_memory,
        )

    def state_dict(self) -> dict[str, Any]:
        """A JSON-serialisable description of what was handed out, the same on every rank."""
        segments = [list(pair) for pair in self._segments]
        return {"epoch": self._epoch, "segments": segments, "made_of": self._made_of}

    @cached_property
    def _made_of(self) -> dict[str, Any]:
        """What must agree for the same samples to be left."""
        ids = b"" if self._ids is None else np.asarray(self._ids, dtype=np.int64).tobytes()
        checksum = crc32(ids, crc32(self._lengths.data))
        return {"samples": len(self._lengths), "checksum": checksum, **asdict(self._rules)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the batch that was handed out when `state` was taken.

        The number of workers and of ranks may differ, and so may `micro_batches`: the samples
        that are left are then planned anew.
        """
        now = self._made_of
        changed = [
            f"{key} was {value}, is {now[key]}"
            for key, value in state.get("made_of", {}).items()
            if now.get(key, value) != value
        ]
        if changed:
            raise RuleError(
                f"the state is of other lengths, ids or rules ({'; '.join(changed)}): which "
                "samples are left cannot be told"
            )
        self._epoch, self._plan = int(state["epoch"]), None
        self._segments = [(int(size), int(done)) for size, done in state["segments"]]
        if self._segments[-1][0] != self.micro_batches:
            self._segments.append((self.micro_batches, 0))
        elif (self.micro_batches - self._segments[-1][1]) % self._world_size:
            raise RuleError(
                f"{self._segments[-1][1]} micro-batches were handed out, which is inside a batch "
                f"of {self.micro_batches}: the rest cannot be dealt evenly to {self._world_size} "
                "ranks. Resume with the old number of ranks, or from a whole batch"
            )
        self._resumed = True


class _MicroBatches:
    """The batch sampler: lists of ids, with the length to pad to where asked."""

    def __init__(self, plan: BatchPlan, chosen: range, *, with_length: bool) -> None:
        self._plan, self._chosen, self._with_length = plan, chosen, with_length

    def __len__(self) -> int:
        return len(self._chosen)

    def __iter__(self) -> Iterator[list[Any]]:
        longest = self._plan.batch_longest if self._with_length else None
        for index in self._chosen:
            ids = self._plan.micro_batch(index)
            if longest is None:
                yield ids
            else:
                length = int(longest[index // self._plan.micro_batches])
                yield [(sample, length) for sample in ids]


class _Padded(Dataset[Any]):
    """Pads each sample to the length asked for together with its id."""

    def __init__(self, dataset: Any, pad_sample: Callable[[Any, int], Any]) -> None:
        self._dataset, self._pad_sample = dataset, pad_sample

    def __getitem__(self, item: tuple[int, int]) -> Any:
        index, length = item
        return self._pad_sample(self._dataset[index], length)
