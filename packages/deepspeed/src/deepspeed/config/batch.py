"""The three batch sizes, each derived from the others and the data-parallel world size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from deepspeed import environment
from deepspeed.config.faults import Findings
from ds_core.sections import setting

TRAIN = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
ACCUMULATION = "gradient_accumulation_steps"


@dataclass(frozen=True)
class BatchKeys:
    """The batch settings as they may stand in the JSON."""

    train_batch_size: int | None = setting(
        None, "samples of one optimizer step, over all ranks", ge=1, auto=True
    )
    train_micro_batch_size_per_gpu: int | None = setting(
        None, "samples of one forward on one rank", ge=1, auto=True
    )
    gradient_accumulation_steps: int | None = setting(
        None, "micro-batches of one optimizer step", ge=1, auto=True
    )


@dataclass(frozen=True)
class WorldSize:
    """The number of data-parallel ranks, with where that number comes from."""

    size: int
    source: str


@dataclass(frozen=True)
class BatchSizes:
    """Consistent sizes: `train == micro * accumulation * world_size`.

    Attributes:
        source: where `world_size` comes from, in words.
    """

    train: int
    micro: int
    accumulation: int
    world_size: int
    source: str


def find_world_size(given: int | WorldSize | None) -> WorldSize:
    """The argument, else the process group, else the environment, else one."""
    if isinstance(given, WorldSize):
        return given
    if given is not None:
        return WorldSize(given, "the argument world_size")
    if dist.is_available() and dist.is_initialized():
        return WorldSize(dist.get_world_size(), "the process group")
    placement = environment.discover_placement()
    if placement is not None:
        return WorldSize(placement.world_size, f"the environment, {placement.source}")
    text = environment.exported(("WORLD_SIZE",)).get("WORLD_SIZE", "")
    if text.isdecimal() and int(text) > 0:
        return WorldSize(int(text), "the environment variable WORLD_SIZE")
    return WorldSize(1, "no process group and no WORLD_SIZE in the environment")


def speaks() -> bool:
    """True on the rank that tells what concerns all ranks."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    placement = environment.discover_placement()
    return placement is None or placement.rank == 0


def resolve_batch(
    keys: BatchKeys, raw: Mapping[str, Any], world: WorldSize, findings: Findings
) -> BatchSizes | None:
    """Fill in what is missing; a fault and None if the sizes cannot fit together."""
    train, micro = keys.train_batch_size, keys.train_micro_batch_size_per_gpu
    accumulation, ranks = keys.gradient_accumulation_steps, world.size
    if train is None and micro is None:
        left = [key for key in (TRAIN, MICRO) if raw.get(key) == "auto"]
        why = f" ({' and '.join(left)} left at 'auto')" if left else ""
        findings.fault(TRAIN, f"missing{why}: give {TRAIN} or {MICRO}, a whole number >= 1")
        return None
    if train is None:
        accumulation = accumulation or 1
        train = (micro or 1) * accumulation * ranks
    elif micro is None:
        accumulation = accumulation or 1
        micro = train // (accumulation * ranks)
    elif accumulation is None:
        accumulation = train // (micro * ranks)
    sizes = BatchSizes(train, micro or 0, accumulation, ranks, world.source)
    if sizes.train == sizes.micro * sizes.accumulation * ranks and sizes.accumulation > 0:
        return sizes
    findings.fault(TRAIN, _mismatch(keys, world))
    return None


def _mismatch(keys: BatchKeys, world: WorldSize) -> str:
    train, micro = keys.train_batch_size, keys.train_micro_batch_size_per_gpu
    steps = keys.gradient_accumulation_steps
    where = f"data-parallel world size {world.size} (from {world.source})"
    if micro is not None and steps is not None:
        product = micro * steps * world.size
        return (
            f"{train} is not {MICRO} {micro} x {ACCUMULATION} {steps} x {where} = {product}; "
            "leave one of the three out to have it derived"
        )
    name, part = (MICRO, micro) if micro is not None else (ACCUMULATION, steps or 1)
    return f"{train} is not a multiple of {name} {part} x {where} = {part * world.size}"
