"""Reading foreign `.pt` files without running what is in them."""

from __future__ import annotations

import argparse
import pickle
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch

from ds_core.errors import CheckpointError


class StageNumber(IntEnum):
    """What the reference pickles as `ZeroStageEnum`."""

    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3


class Plain:
    """Stands in for a small record class: keeps its fields, does nothing."""

    def __init__(self, *args: Any, **fields: Any) -> None:
        self.args = args
        self.__dict__.update(fields)


class Fragment(Plain):
    """`fragment_address`: where a parameter's elements lie in a partition."""

    numel: int
    start: int


class Scaler(Plain):
    """A loss scaler."""


_ALLOWED: list[Any] = [
    (StageNumber, "deepspeed.runtime.zero.config.ZeroStageEnum"),
    (Fragment, "deepspeed.utils.tensor_fragment.fragment_address"),
    (Scaler, "deepspeed.runtime.fp16.loss_scaler.LossScaler"),
    (Scaler, "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler"),
    (set, "builtins.set"),
    (argparse.Namespace, "argparse.Namespace"),
]


def read_pt(path: Path, *, unsafe: bool = False) -> Any:
    """The content of a file written by `torch.save`.

    Args:
        unsafe: unpickle with full power, for files that hold objects of other classes and whose
            origin is trusted: loading such a file may run any code.

    Raises:
        CheckpointError: the file is damaged or holds something that is no plain data.
    """
    if unsafe:
        return torch.load(path, map_location="cpu", weights_only=False)
    try:
        with torch.serialization.safe_globals(_ALLOWED):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except (pickle.UnpicklingError, RuntimeError) as error:
        first = str(error).split("\n\n")[0].strip().splitlines()
        reason = next((line for line in first if "Unsupported" in line or "GLOBAL" in line), None)
        raise CheckpointError(
            f"{path} cannot be read as plain data: {reason or ' '.join(first)}. If you trust its "
            "origin, load it with unsafe=True"
        ) from error
