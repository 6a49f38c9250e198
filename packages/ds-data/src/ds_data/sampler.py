"""Draw batches from the samples that a curriculum allows so far."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch.utils.data import DataLoader

from ds_data.curriculum import CurriculumScheduler
from ds_data.errors import RuleError
from ds_data.indexed import MMapIndexedDataset

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class CurriculumRule:
    """One metric: how hard each sample is, and how hard it may be at each step.

    Attributes:
        schedule: difficulty by step.
        values: difficulty of each sample; or None for `single_cluster`.
        ranks: place of each sample from easiest to hardest; with it, difficulty is a percentage
            of the samples instead of a value.
    """

    schedule: CurriculumScheduler
    values: Ints | Sequence[int] | None = None
    ranks: Ints | Sequence[int] | None = None

    def __post_init__(self) -> None:
        for name in ("values", "ranks"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, np.asarray(given, dtype=np.int64))

    @classmethod
    def from_files(
        cls,
        schedule: CurriculumScheduler,
        *,
        index_to_sample: str | Path,
        index_to_metric: str | Path,
        difficulty: Literal["value", "percentile"],
        num_samples: int,
    ) -> CurriculumRule:
        """Read what an analyzer wrote. Samples it does not know are never drawn."""
        samples = MMapIndexedDataset(index_to_sample)
        order = samples.flat().astype(np.int64)
        if len(order) and int(order.max()) >= num_samples:
            raise RuleError(
                f"{index_to_sample} names sample {int(order.max())}, the data set has "
                f"{num_samples}: it was made from another one"
            )
        places: Ints = np.full(num_samples, np.iinfo(np.int64).max, dtype=np.int64)
        if difficulty == "percentile":
            places[order] = np.arange(len(order))
            return cls(schedule=schedule, ranks=places)
        metric = MMapIndexedDataset(index_to_metric)
        if len(metric) != len(samples):
            raise RuleError(
                f"{index_to_metric} has {len(metric)} values, {index_to_sample} {len(samples)} "
                "rows: with difficulty_type 'value', give the file without 'percentile_merged'"
            )
        places[order] = np.repeat(metric.flat().astype(np.int64), samples.sizes)
        return cls(schedule=schedule, values=places)

    def allowed(self, difficulty: int) -> npt.NDArray[np.bool_] | None:
        """Which samples are not too hard; None if all take part."""
        if self.values is not None:
            return np.asarray(self.values) <= difficulty
        if self.ranks is not None:
            ranks = np.asarray(self.ranks)
            known = int((ranks < np.iinfo(np.int64).max).sum())
            return ranks < known * difficulty // 100
        return None


@dataclass(frozen=True, kw_only=True)
class Shares:
    """How a global batch is dealt out."""

    micro_batch_size: int
    rank: int = 0
    world_size: int = 1
    accumulation_steps: int = 1

    def __post_init__(self) -> None:
        if min(self.micro_batch_size, self.accumulation_steps) < 1:
            raise RuleError(
                f"micro-batch size {self.micro_batch_size} and accumulation steps "
                f"{self.accumulation_steps} must be at least 1"
            )
        if not 0 <= self.rank < self.world_size:
            raise RuleError(f"rank {self.rank} does not lie in a world of {self.world_size}")

    @property
    def global_batch_size(self) -> int:
        return self.micro_batch_size * self.world_size * self.accumulation_steps


class _Cluster:
    """Samples that became allowed together, drawn in shuffled rounds."""

    def __init__(self, members: Ints, seed: tuple[int, ...], drawn: int = 0) -> None:
        self.members = members
        self.drawn = drawn
        self._seed = seed
        self._round = -1
        self._order = members

    def draw(self, number: int) -> Ints:
        """The next `number` samples; a new shuffle begins whenever all were drawn."""
        pieces = []
        while number:
            turn, at = divmod(self.drawn, len(self.members))
            if turn != self._round:
                random = np.random.default_rng([*self._seed, turn])
                self._order, self._round = self.members[random.permutation(len(self.members))], turn
            piece = self._order[at : at + number]
            pieces.append(piece)
            self.drawn += len(piece)
            number -= len(piece)
        return np.concatenate(pieces) if pieces else self.members[:0]


class CurriculumSampler:
    """A batch sampler: yields this rank's micro-batches as lists of sample ids.

    Each global batch is one curriculum step. Samples that a step newly allows form a cluster;
    a batch takes from each cluster in proportion to its size. All ranks draw the same batch and
    take their part of it, without communication. The sampler has its own random state.

    Args:
        num_samples: samples of the data set.
        shares: how a batch is dealt out.
        rules: curriculum metrics by name; none: plain shuffled epochs.
        num_epochs: the end: `num_epochs * num_samples` samples.
        drop_last: leave out the last batch if it is incomplete; otherwise it is filled up until
            all ranks have equally many samples.
        cluster_path: directory that receives the members of each cluster, or None.
    """

    def __init__(
        self,
        num_samples: int,
        shares: Shares,
        rules: Mapping[str, CurriculumRule] | None = None,
        *,
        num_epochs: int = 1,
        drop_last: bool = True,
        seed: int = 1234,
        cluster_path: str | Path | None = None,
    ) -> None:
        if num_samples < 1 or num_epochs < 1:
            raise RuleError(f"{num_samples} samples, {num_epochs} epochs: each must be at least 1")
        if seed < 0:
            raise RuleError(f"seed is {seed}: it must not be negative")
        self.rules = dict(rules or {})
        for name, rule in self.rules.items():
            for given in (rule.values, rule.ranks):
                if given is not None and np.shape(given) != (num_samples,):
                    raise RuleError(
                        f"metric {name!r} has values of shape {np.shape(given)}: expected one for "
                        f"each of {num_samples} samples"
                    )
        self._num_samples, self._shares = num_samples, shares
        self._total = num_samples * num_epochs
        self._drop_last, self._seed = drop_last, seed
        self._cluster_path = None if cluster_path is None else Path(cluster_path)
        self._random = np.random.default_rng([seed, 0])
        self._clusters: list[_Cluster] = []
        self._births: list[dict[str, int]] = []  # difficulties at which each cluster was formed
        self._assigned = np.zeros(num_samples, dtype=bool)
        self._step = 0
        self._consumed = 0
        self._done_in_batch = 0
        self._snapshots: list[dict[str, Any]] = []
        self._marking = False

    def __len__(self) -> int:
        """Micro-batches for this rank from the start to the end of training."""
        whole, rest = divmod(self._total, self._shares.global_batch_size)
        last = 0 if self._drop_last else -(-rest // self._chunk)
        return whole * self._shares.accumulation_steps + last

    def __iter__(self) -> Iterator[list[int]]:
        size, chunk = self._shares.global_batch_size, self._chunk
        while True:
            wanted = min(size, self._total - self._consumed)
            if wanted <= 0 or (wanted < size and self._drop_last):
                return
            wanted += -wanted % self._shares.world_size  # the end too is alike on every rank
            before = self._state()
            done, self._done_in_batch = self._done_in_batch, 0
            batch = self.next_global_batch(wanted)
            for begin in range(done, wanted, chunk):
                passed = min(begin + chunk, wanted)
                each = (passed - begin) // self._shares.world_size
                first = begin + self._shares.rank * each
                state = self._state()
                if passed < wanted:  # the whole batch is drawn again, from the state before it
                    now = state["current_difficulties"]
                    state = before | {"done_in_batch": passed, "current_difficulties": now}
                self._snapshots.append(state)
                if not self._marking:
                    self._snapshots = self._snapshots[-1:]
                yield batch[first : first + each].tolist()

    @property
    def _chunk(self) -> int:
        return self._shares.micro_batch_size * self._shares.world_size

    def next_global_batch(self, size: int | None = None) -> Ints:
        """Move one curriculum step and draw its samples, for all ranks."""
        self._step += 1
        for rule in self.rules.values():
            rule.schedule.update_difficulty(self._step)
        self._grow(self.difficulties())
        number = self._shares.global_batch_size if size is None else size
        sizes = np.asarray([len(cluster.members) for cluster in self._clusters])
        counts = self._random.multinomial(number, sizes / sizes.sum())
        drawn = [c.draw(int(count)) for c, count in zip(self._clusters, counts, strict=True)]
        self._consumed += number
        return self._random.permutation(np.concatenate(drawn))

    def difficulties(self) -> dict[str, int]:
        """The present difficulty of each metric."""
        return {name: rule.schedule.get_current_difficulty() for name, rule in self.rules.items()}

    def _grow(self, difficulties: dict[str, int]) -> None:
        """Make a cluster of the samples that are newly allowed, if there are any."""
        if self._births and self._births[-1] == difficulties:
            return
        allowed = ~self._assigned
        for name, rule in self.rules.items():
            mask = rule.allowed(difficulties[name])
            if mask is not None:
                allowed &= mask
        members = np.flatnonzero(allowed)
        if len(members):
            self._add_cluster(members, difficulties)
        elif not self._clusters:
            raise RuleError(
                f"no sample is as easy as {difficulties}: raise min_difficulty, or look at what "
                "the metrics' files hold"
            )

    def _add_cluster(self, members: Ints, difficulties: dict[str, int], drawn: int = 0) -> None:
        number = len(self._clusters)
        self._assigned[members] = True
        if self._cluster_path is not None:
            members = _kept_on_disk(self._cluster_path / f"cluster_{number}.npy", members)
        self._clusters.append(_Cluster(members, (self._seed, 1, number), drawn))
        self._births.append(dict(difficulties))

    def _state(self) -> dict[str, Any]:
        return {
            "num_samples": self._num_samples,
            "step": self._step,
            "consumed_samples": self._consumed,
            "done_in_batch": 0,
            "current_difficulties": self.difficulties(),
            "births": [dict(birth) for birth in self._births],
            "drawn": [cluster.drawn for cluster in self._clusters],
            "random": self._random.bit_generator.state,
        }

    def track(self) -> None:
        """From now on `state_dict` follows `mark_consumed`: for loaders that fetch ahead.

        What was fetched and not handed out is drawn again.
        """
        if self._snapshots:
            self.load_state_dict(self._snapshots[0])
        self._marking = True
        self._snapshots = [self._current_state()]

    def mark_consumed(self) -> None:
        """One more micro-batch was handed to the training loop."""
        self._snapshots.pop(0)

    def _current_state(self) -> dict[str, Any]:
        return self._state() | {"done_in_batch": self._done_in_batch}

    def state_dict(self) -> dict[str, Any]:
        """A small JSON-serialisable state, the same on every rank: what follows the micro-batch
        that was handed out last."""
        return dict(self._snapshots[0]) if self._snapshots else self._current_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after `state`; workers and, at whole batches, ranks may have changed."""
        before = state.get("num_samples", self._num_samples)
        if before != self._num_samples:
            raise RuleError(f"the state is of {before} samples, there are {self._num_samples}")
        done = int(state["done_in_batch"])
        if done % self._chunk:
            raise RuleError(
                f"{done} samples of a batch were handed out, which is no multiple of {self._chunk} "
                "(micro-batch size times ranks): resume with the old shares or from a whole batch"
            )
        self._clusters, self._births = [], []
        self._assigned[:] = False
        self._snapshots = []
        for birth, drawn in zip(state["births"], state["drawn"], strict=True):
            self._rebuild(birth, int(drawn))
        for name, difficulty in state["current_difficulties"].items():
            self.rules[name].schedule.set_current_difficulty(int(difficulty))
        self._step, self._consumed = int(state["step"]), int(state["consumed_samples"])
        self._done_in_batch = done
        self._random.bit_generator.state = state["random"]

    def _rebuild(self, birth: Mapping[str, int], drawn: int) -> None:
        allowed = ~self._assigned
        for name, rule in self.rules.items():
            mask = rule.allowed(int(birth[name]))
            if mask is not None:
                allowed &= mask
        members = np.flatnonzero(allowed)
        if not len(members):
            raise RuleError(f"no sample is as easy as {dict(birth)}: the state is of other data")
        self._add_cluster(members, dict(birth), drawn)


def _kept_on_disk(path: Path, members: Ints) -> Ints:
    """Write `members` whole or not at all (every rank writes the same), and map them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.{os.getpid()}.part")
    with open(aside, "wb") as file:
        np.save(file, members)
    os.replace(aside, path)
    mapped: Ints = np.load(path, mmap_mode="r")
    return mapped


class CurriculumLoader:
    """A data loader over a `CurriculumSampler` whose state is what was handed out.

    Args:
        post_process: called with each batch and the sampler's state, e.g. to cut sequences to
            `state["current_difficulties"]["seqlen"]`.
    """

    def __init__(
        self,
        dataset: Any,  # map-style
        sampler: CurriculumSampler,
        *,
        collate_fn: Any = None,
        num_workers: int = 0,
        pin_memory: bool = False,
        post_process: Any = None,
    ) -> None:
        self.sampler = sampler
        self.post_process = post_process
        self._dataset, self._collate_fn = dataset, collate_fn
        self._num_workers, self._pin_memory = num_workers, pin_memory

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        self.sampler.track()
        loader: DataLoader[Any] = DataLoader(
            self._dataset,
            batch_sampler=self.sampler,
            collate_fn=self._collate_fn,
            num_workers=self._num_workers,
            pin_memory=self._pin_memory,
        )
        for batch in loader:
            self.sampler.mark_consumed()
            if self.post_process is not None:
                batch = self.post_process(batch, self.sampler.state_dict())
            yield batch

    def state_dict(self) -> dict[str, Any]:
        return self.sampler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.sampler.load_state_dict(state)
