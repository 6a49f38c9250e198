"""One piece of training state, addressed by the user's parameter name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

WEIGHT = "weight"
"""The slot of a parameter's value: its fp32 master, or the parameter itself without one."""

BUFFER = "buffer"
"""The slot of a persistent module buffer."""


@dataclass(frozen=True, slots=True)
class TensorShard:
    """`piece` holds elements `start .. start + piece.numel()` of a flattened tensor.

    Attributes:
        name: dotted name in the user's module (`embed.weight`), without any wrapper prefix.
        slot: which value of that parameter: `WEIGHT`, `BUFFER`, or an optimizer state's own key
            (`exp_avg`, `step`, ...).
        global_shape: shape of the whole tensor; `()` for a scalar.
        start: offset of the piece in the flattened whole tensor, in elements.
        piece: 1-d, contiguous; the strategy owns the memory, readers must not keep it.
        aliases: further names of the same parameter (ties), by identity.
        frozen: true if the parameter does not require a gradient.
    """

    name: str
    slot: str
    global_shape: tuple[int, ...]
    start: int
    piece: Tensor
    aliases: tuple[str, ...] = ()
    frozen: bool = False


class ShardReader(Protocol):
    """Gives back state by name and range, whatever layout wrote it."""

    def slots(self, name: str) -> frozenset[str]:
        """The slots stored for `name` or for one of its aliases; empty if unknown."""

    def shape(self, name: str, slot: str) -> tuple[int, ...]:
        """The global shape stored for `name`; raises `CheckpointError` if there is none."""

    def dtype(self, name: str, slot: str) -> torch.dtype:
        """The dtype that was stored."""

    def read(self, name: str, slot: str, start: int, out: Tensor) -> None:
        """Fill 1-d contiguous `out` from element `start`, converting to `out.dtype`."""

    def names(self) -> Iterable[str]:
        """Every stored name, aliases left out."""
