"""An engine's whole state in a checkpoint, and back."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from ds_core.checkpoint import AsyncSaver, Checkpoint, open_checkpoint, save
from ds_core.contracts import LoadWhat, ShardReader, TensorShard
from ds_core.engine import Counters, Engine
from ds_core.errors import CheckpointError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class SaveOptions:
    """How a checkpoint is written.

    Attributes:
        save_latest: name it in `latest`.
        exclude_frozen: leave out parameters that do not require a gradient.
        saver: write in the background; None returns when all is on disk.
        progress: told how many bytes were just written.
        tensor_writer: writes one safetensors file, instead of the built-in writer.
    """

    save_latest: bool = True
    exclude_frozen: bool = False
    saver: AsyncSaver | None = None
    progress: Callable[[int], object] | None = None
    tensor_writer: Callable[[Path, Mapping[str, Tensor]], object] | None = None


def save_engine(
    engine: Engine,
    directory: str | os.PathLike[str],
    tag: str,
    *,
    client_state: Mapping[str, Any] | None = None,
    options: SaveOptions | None = None,
) -> Path:
    """Save weights, optimizer, schedule, counters, hooks and random generators under a tag.

    All ranks call this. The user's `client_state` comes from rank 0. See `ds_core.checkpoint.save`
    for what a kill leaves, and for errors.
    """
    engine.require_open()
    options = options or SaveOptions()
    shards: Iterable[TensorShard] = scoped(engine.strategy.shards(), engine.state_scope)
    if options.exclude_frozen:
        shards = (shard for shard in shards if not shard.frozen)
    if options.tensor_writer is not None:
        shards = list(shards)
    arguments: dict[str, Any] = {
        "shards": shards,
        "state": _state(engine),
        "client_state": client_state,
        "rank_state": _random_state(),
        "save_latest": options.save_latest,
        "progress": options.progress,
        "tensor_writer": options.tensor_writer,
    }
    if options.saver is not None:
        return options.saver.save(directory, tag, **arguments)
    return save(directory, tag, comm=engine.groups.world, **arguments)


def load_engine(
    engine: Engine,
    directory: str | os.PathLike[str],
    tag: str | None = None,
    *,
    what: LoadWhat | None = None,
    schedule: bool = True,
    progress: bool = True,
) -> Checkpoint:
    """Verify a checkpoint, then fill the engine from it; all ranks call this.

    Args:
        tag: which one; None for the one that `latest` names.
        what: weights and/or optimizer, strictly or not.
        schedule: restore the learning-rate schedule too.
        progress: restore counters, hooks and random generators too. Generators are left alone if
            the number of ranks differs from the one that saved.

    Returns:
        The open checkpoint; its `client_state()` is the user's. The caller closes it.
    """
    engine.require_open()
    what = what or LoadWhat()
    checkpoint = open_checkpoint(directory, tag, comm=engine.groups.world)
    try:
        state = checkpoint.state
        if schedule:
            _require_schedule(engine, state.get("schedule"))
        reader = ScopedReader(checkpoint.reader, engine.state_scope)
        engine.strategy.load(reader, state.get("strategy", {}), what=what)
        if schedule and engine.schedule is not None:
            engine.schedule.load_state_dict(state["schedule"])
        if progress:
            engine.counters = Counters(**state["counters"])
            engine.hooks.load_state_dict(state.get("hooks", {}))
            rank = engine.groups.world.rank
            _restore_random(checkpoint.rank_state(rank), rank=rank)
        engine.zero_grad()
    except BaseException:
        checkpoint.close()
        raise
    return checkpoint


def load_weights(engine: Engine, directory: str | os.PathLike[str], tag: str | None = None) -> None:
    """Take only parameters and buffers from a checkpoint."""
    what = LoadWhat(weights=True, optimizer=False)
    load_engine(engine, directory, tag, what=what, schedule=False, progress=False).close()


def scoped(shards: Iterable[TensorShard], scope: str) -> Iterable[TensorShard]:
    """`shards` with `scope` before their names."""
    if not scope:
        return shards
    return (
        replace(
            shard,
            name=scope + shard.name,
            aliases=tuple(scope + alias for alias in shard.aliases),
        )
        for shard in shards
    )


@dataclass(frozen=True)
class ScopedReader:
    """A `ShardReader` that sees only the names below `scope`, without it."""

    reader: ShardReader
    scope: str

    def slots(self, name: str) -> frozenset[str]:
        return self.reader.slots(self.scope + name)

    def shape(self, name: str, slot: str) -> tuple[int, ...]:
        return self.reader.shape(self.scope + name, slot)

    def dtype(self, name: str, slot: str) -> torch.dtype:
        return self.reader.dtype(self.scope + name, slot)

    def read(self, name: str, slot: str, start: int, out: Tensor) -> None:
        self.reader.read(self.scope + name, slot, start, out)

    def names(self) -> Iterable[str]:
        size = len(self.scope)
        return (name[size:] for name in self.reader.names() if name.startswith(self.scope))


def _state(engine: Engine) -> dict[str, Any]:
    schedule = engine.schedule
    return {
        "counters": asdict(engine.counters),
        "strategy": engine.strategy.facts(),
        "schedule": None if schedule is None else _schedule_state(schedule),
        "hooks": engine.hooks.state_dict(),
        "data_parallel_size": engine.groups.data.world_size,
    }


def _schedule_state(schedule: Any) -> dict[str, Any]:
    """A schedule's state without functions (`LambdaLR` keeps None for them)."""
    return {key: value for key, value in schedule.state_dict().items() if not callable(value)}


def _require_schedule(engine: Engine, state: dict[str, Any] | None) -> None:
    """Raise before anything is loaded if the run has a schedule and the checkpoint none."""
    if engine.schedule is not None and state is None:
        raise CheckpointError(
            "the checkpoint holds no learning-rate schedule but this run has one; load it with "
            "load_lr_scheduler_states=False"
        )


def _random_state() -> dict[str, Any]:
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": numpy.random.get_state(),
    }
    if torch.accelerator.is_available():
        state["accelerator"] = torch.get_device_module().get_rng_state()
    return state


def _restore_random(state: dict[str, Any] | None, *, rank: int) -> None:
    if state is None:
        if rank == 0:  # it is the same on all
            logger.warning(
                "random generators were left alone: the checkpoint is of another number of ranks"
            )
        return
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    numpy.random.set_state(state["numpy"])
    if "accelerator" in state and torch.accelerator.is_available():
        torch.get_device_module().set_rng_state(state["accelerator"])
