"""The process groups of one engine: data parallel, model parallel and the world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch.distributed as dist

from ds_core.comm import Communicator, Taps
from ds_core.errors import ConfigError


class ModelParallelUnit(Protocol):
    """What a Megatron-style `mpu` answers (any further method is ignored)."""

    def get_data_parallel_group(self) -> dist.ProcessGroup: ...

    def get_model_parallel_group(self) -> dist.ProcessGroup: ...


@dataclass(frozen=True)
class Groups:
    """The communicators an engine uses.

    Attributes:
        data: ranks that hold the same weights and see different data.
        model: ranks that hold different pieces of one replica; a group of one without an `mpu`.
        world: all ranks.
        taps: observers of all three.
    """

    data: Communicator
    model: Communicator
    world: Communicator
    taps: Taps


def make_groups(mpu: ModelParallelUnit | None = None, *, check: bool = False) -> Groups:
    """Groups of the initialised `torch.distributed`, cut by `mpu` if one is given.

    Raises:
        ConfigError: if `mpu` lacks a method this needs.
    """
    taps = Taps()
    world = Communicator(None, name="world", taps=taps, check=check)
    if mpu is None:
        alone = Communicator.alone(taps) if world.world_size > 1 else world
        return Groups(
            data=Communicator(None, name="data", taps=taps, check=check),
            model=alone,
            world=world,
            taps=taps,
        )
    missing = [
        name for name in ("get_data_parallel_group",) if not callable(getattr(mpu, name, None))
    ]
    if missing:
        raise ConfigError(f"mpu {type(mpu).__name__} has no {missing[0]}()")
    getter = getattr(mpu, "get_model_parallel_group", None) or getattr(
        mpu, "get_tensor_model_parallel_group", None
    )
    if getter is None:
        raise ConfigError(
            f"mpu {type(mpu).__name__} has neither get_model_parallel_group() nor "
            "get_tensor_model_parallel_group()"
        )
    return Groups(
        data=Communicator(mpu.get_data_parallel_group(), name="data", taps=taps, check=check),
        model=Communicator(getter(), name="model", taps=taps, check=check),
        world=world,
        taps=taps,
    )
