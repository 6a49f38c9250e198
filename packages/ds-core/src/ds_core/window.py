"""Where the accumulation window of a step begins and ends, and what its mean divides by."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ds_core.comm import Communicator
from ds_core.contracts import Divisor
from ds_core.errors import ConfigError, StateError

_LEAST_WEIGHT = 1e-30
"""Sums of weights are divided by, in fp32 too."""


class AccumulationWindow:
    """Counts micro-batches and says when a window closes.

    A window closes with its `accumulation_steps`-th micro-batch, or when the boundary is forced.
    The mean is over the micro-batches really seen, or over their weights. More backward passes
    than `accumulation_steps` (two losses before one step) add up, as in plain PyTorch.

    Args:
        accumulation_steps: micro-batches of a regular window.
        comm: the data-parallel group; weights are summed over it.
        ahead_of: what ranks send each other after that, for the message of a timeout.
    """

    def __init__(
        self, accumulation_steps: int, comm: Communicator, *, ahead_of: str = "gradients"
    ) -> None:
        self.accumulation_steps, self._comm = accumulation_steps, comm
        self._ahead_of = ahead_of
        self.forced: bool | None = None
        self.seen = 0
        self._was_forced = self._ran = False
        self._weight = 0.0
        self._total: float | None = None  # of the weights of all ranks; None: not summed yet
        self._usual_total: float | None = None
        self._by_weight = self._divided = False

    def is_boundary(self) -> bool:
        """True if the present micro-batch closes the window; the one to come if none is open."""
        if self.forced is not None:
            return self.forced
        return max(self.seen, 1) >= self.accumulation_steps

    def will_close(self) -> bool:
        """True if the micro-batch whose backward is about to run is the last."""
        return self.forced if self.forced is not None else self.seen + 1 >= self.accumulation_steps

    @staticmethod
    def as_weight(weight: Any) -> float:
        """A micro-batch's weight as a number; tensors with one element and the like are taken."""
        try:
            number = float(weight.detach() if isinstance(weight, Tensor) else weight)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise ConfigError(
                f"weight {weight!r} of a micro-batch must be one number, e.g. its tokens"
            ) from error
        if not _LEAST_WEIGHT <= number < math.inf:
            raise ConfigError(
                f"weight {weight} of a micro-batch must be positive and finite; leave out the "
                "backward() of one that does not count"
            )
        return number

    def add(self, weight: float | None, *, divided: bool) -> None:
        """Another micro-batch; all of a window carry a weight or none does.

        Args:
            weight: its share of the mean, e.g. its number of tokens.
            divided: the caller already divided its loss by the accumulation steps.
        """
        if self._ran and (weight is None) == self._by_weight:
            raise ConfigError(
                "micro-batches with and without a weight in one accumulation window; give "
                "backward() a weight for all of them or for none"
            )
        self.skip()
        self._ran = True
        self._by_weight = weight is not None
        self._divided = divided
        self._weight += weight or 0.0
        self._total = None

    def skip(self) -> None:
        """A micro-batch whose gradients are zero here, or came by a plain `loss.backward()`."""
        self.seen += 1
        self._was_forced |= self.forced is not None

    def divisor(self, *, closing: bool) -> Divisor:
        """What the sum over ranks and micro-batches is divided by.

        Before the window closes this is the expected value; `closing` gives the true one. All
        ranks call this in step: the first call of all, and with weights the first that closes a
        window, sums over the group.
        """
        if self._usual_total is None:
            self._learn_from_others()
        mean, root = self._numbers(closing)
        return Divisor(mean, mean if closing and self.seen == 1 else root)

    def _numbers(self, closing: bool) -> tuple[float, float]:
        """What to divide by, and what was to be expected of it."""
        world = self._comm.world_size
        if self._by_weight:
            usual = self._usual_total or 1.0  # 0: every rank skipped
            return (self._summed() or 1.0) if closing else usual, usual
        if self._divided:
            return world, world
        usual = world * self.accumulation_steps
        if not closing:
            return usual, usual
        seen = self.seen if self._was_forced else min(self.seen, self.accumulation_steps)
        return world * seen, usual

    def require_same_everywhere(self) -> None:
        """Raise on all ranks if they saw different numbers of micro-batches in a forced window.

        Called after the step, where all ranks meet. Elsewhere `skip` counts for the ranks that
        leave a micro-batch out.
        """
        if not self._was_forced or self._by_weight or self._divided:
            return
        world = self._comm.world_size
        total = self._comm.sum_number(self.seen, label="micro-batches of a forced window")
        if total != self.seen * world:
            raise StateError(
                f"the {world} ranks had {total:g} micro-batches in this window, this one "
                f"{self.seen}: each divided its gradients by its own number and this step is "
                "wrong. Call backward() as often on all ranks (with loss * 0 where one has nothing "
                "to add), or step() after each micro-batch; go on from a checkpoint"
            )

    def close(self) -> None:
        """The window's step was taken: begin another."""
        if self._total:
            self._usual_total = self._total
        self.seen, self._weight, self._was_forced = 0, 0.0, False
        self._total, self._ran = None, False

    def _learn_from_others(self) -> None:
        """Let a rank that skips its first backward know what the others do in theirs.

        One number says it: the weights are positive; without any, -1 stands for "divided".
        """
        own = -1.0 if self._divided and not self._by_weight else self._weight
        label = f"batch weights in the first backward, ahead of {self._ahead_of}"
        total = self._comm.sum_number(own, label=label)
        self._by_weight, self._divided = total > 0, total < 0
        self._usual_total = max(total, 0.0) * self.accumulation_steps

    def _summed(self) -> float:
        if self._total is None:
            label = f"batch weights of a window, ahead of {self._ahead_of}"
            self._total = self._comm.sum_number(self._weight, label=label)
        return self._total
