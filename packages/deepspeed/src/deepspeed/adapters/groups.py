"""Process groups by the function names of `deepspeed.utils.groups`.

Megatron-style programs hand an `mpu` to `initialize(mpu=...)` here; without one, all ranks share
one data-parallel group.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


class GroupAnswers:
    """Answers for one `mpu`, or for plain data parallelism without one."""

    def __init__(self) -> None:
        self.mpu: Any = None

    def initialize(self, ep_size: int = 1, mpu: Any = None) -> None:
        """Remember the `mpu` of the program."""
        if ep_size != 1:
            raise ValueError(f"ep_size {ep_size}: expert parallelism is not part of this release")
        self.mpu = mpu

    def ask(self, question: str, otherwise: Any) -> Any:
        answer = getattr(self.mpu, question, None)
        return otherwise() if answer is None else answer()


ANSWERS = GroupAnswers()
"""The groups that this process told us about (the functions below have no other argument)."""

initialize = ANSWERS.initialize


def _world() -> dist.ProcessGroup | None:
    return dist.group.WORLD if dist.is_initialized() else None


def _size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def get_data_parallel_group() -> Any:
    return ANSWERS.ask("get_data_parallel_group", _world)


def get_data_parallel_world_size() -> int:
    return int(ANSWERS.ask("get_data_parallel_world_size", _size))


def get_data_parallel_rank() -> int:
    return int(ANSWERS.ask("get_data_parallel_rank", _rank))


def get_model_parallel_group() -> Any:
    return ANSWERS.ask("get_model_parallel_group", lambda: None)


def get_model_parallel_world_size() -> int:
    return int(ANSWERS.ask("get_model_parallel_world_size", lambda: 1))


def get_model_parallel_rank() -> int:
    return int(ANSWERS.ask("get_model_parallel_rank", lambda: 0))


get_tensor_model_parallel_group = get_model_parallel_group
get_tensor_model_parallel_world_size = get_model_parallel_world_size
get_tensor_model_parallel_rank = get_model_parallel_rank


def get_sequence_parallel_group() -> Any:
    return ANSWERS.ask("get_sequence_parallel_group", lambda: None)


def get_sequence_parallel_world_size() -> int:
    return int(ANSWERS.ask("get_sequence_parallel_world_size", lambda: 1))


def get_sequence_parallel_rank() -> int:
    return int(ANSWERS.ask("get_sequence_parallel_rank", lambda: 0))


def bwc_tensor_model_parallel_world_size(mpu: Any = None) -> int:
    """The tensor-parallel size by whichever of the two names `mpu` uses."""
    for name in ("get_tensor_model_parallel_world_size", "get_model_parallel_world_size"):
        if hasattr(mpu, name):
            return int(getattr(mpu, name)())
    return 1


def bwc_pipeline_parallel_world_size(mpu: Any = None) -> int:
    """The number of pipeline stages by whichever of the two names `mpu` uses."""
    for name in ("get_pipeline_model_parallel_world_size", "get_pipe_parallel_world_size"):
        if hasattr(mpu, name):
            return int(getattr(mpu, name)())
    return 1
