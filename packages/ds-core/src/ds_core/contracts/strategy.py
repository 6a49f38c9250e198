"""Who owns parameters, gradients and optimizer state, and how they are updated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ds_core.contracts.shard import ShardReader, TensorShard


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one optimizer step did.

    Attributes:
        grad_norm: global L2 norm of the averaged, unscaled gradients before clipping.
        skipped: true if nothing was updated because the norm was not finite.
        loss_scale: the scale the gradients of this step were computed under.
        nonfinite: names of parameters with a non-finite gradient, if `skipped`.
    """

    grad_norm: float | None
    skipped: bool = False
    loss_scale: float = 1.0
    nonfinite: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Divisor:
    """What the sum of gradients over ranks and micro-batches is divided by.

    Attributes:
        mean: the number itself; only an expected one until the window closes.
        root: an expected one too, the same on all ranks and in all passes of a window, so that
            backward can start from it.
    """

    mean: float
    root: float

    def times(self, factor: float) -> Divisor:
        """For gradients that are `factor` as large."""
        return Divisor(self.mean * factor, self.root * factor)


@dataclass(frozen=True, slots=True)
class LoadWhat:
    """Which state `load` takes from a checkpoint.

    Attributes:
        weights: parameters and buffers.
        optimizer: moments, parameter-group options and the loss scale.
        strict: a trained parameter or buffer that the checkpoint lacks, or the other way round,
            is an error; otherwise it is left as it is, with a warning.
    """

    weights: bool = True
    optimizer: bool = True
    strict: bool = True


class UpdateStrategy(Protocol):
    """Owns how parameters, gradients and optimizer state lie across the data-parallel group.

    Gradients accumulate locally over `backward(sync=False)` calls. `backward(sync=True)` closes
    the window: when it returns, every parameter's gradient is the sum over all ranks and all
    micro-batches of the window, divided by `divisor.mean`. A parameter that no rank used has none.
    A plain `loss.backward()` outside of the strategy accumulates too; `step` reduces what is left.
    """

    optimizer: torch.optim.Optimizer

    def backward(self, loss: Tensor, *, sync: bool, divisor: Divisor, retain_graph: bool) -> None:
        """Back-propagate `loss` (the strategy applies its own loss scale)."""

    def skip_pass(self) -> None:
        """This rank's micro-batch had no `backward`: take part in what those of others did."""

    def step(self, *, divisor: Divisor) -> StepReport:
        """Unscale, measure, clip, update what this rank owns, clear gradients."""

    def zero_grad(self) -> None:
        """Forget all gradients of the open window."""

    def gather(
        self, params: Iterable[nn.Parameter], *, modifier_rank: int | None = None
    ) -> AbstractContextManager[None]:
        """Inside, `params` are whole; with `modifier_rank` that rank's edits reach all."""

    def shards(self) -> Iterable[TensorShard]:
        """The state this rank must save: over all ranks each element exactly once."""

    def facts(self) -> dict[str, Any]:
        """The rest of the state, JSON-serialisable and equal on all ranks."""

    def load(self, reader: ShardReader, facts: Mapping[str, Any], *, what: LoadWhat) -> None:
        """Fill what this rank owns; checks names and shapes before it writes anything."""

    def close(self) -> None:
        """Remove every hook and give the model back whole; idempotent."""
