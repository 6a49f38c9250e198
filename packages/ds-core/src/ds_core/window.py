"""Where the accumulation window of a step begins and ends, and what its mean divides by."""

from __future__ import annotations

from ds_core.comm import Communicator
from ds_core.errors import ConfigError


class AccumulationWindow:
    """Counts micro-batches and says when a window closes.

    A window closes with its `accumulation_steps`-th micro-batch, or when the boundary is forced.
    The mean is over the micro-batches really seen, or over their weights. More backward passes
    than `accumulation_steps` (two losses before one step) add up, as in plain PyTorch.

    Args:
        accumulation_steps: micro-batches of a regular window.
        comm: the data-parallel group; weights are summed over it.
    """

    def __init__(self, accumulation_steps: int, comm: Communicator) -> None:
        self.accumulation_steps, self._comm = accumulation_steps, comm
        self.forced: bool | None = None
        self.seen = 0
        self._was_forced = False
        self._weight = 0.0
        self._usual_weight: float | None = None
        self._divided = True

    def is_boundary(self) -> bool:
        """True if the present micro-batch closes the window; the one to come if none is open."""
        if self.forced is not None:
            return self.forced
        return max(self.seen, 1) >= self.accumulation_steps

    def will_close(self) -> bool:
        """True if the micro-batch whose backward is about to run is the last."""
        return self.forced if self.forced is not None else self.seen + 1 >= self.accumulation_steps

    def add(self, weight: float | None, *, divided: bool) -> None:
        """Another micro-batch; all of a window carry a weight or none does.

        Args:
            weight: its share of the mean, e.g. its number of tokens.
            divided: the caller already divided its loss by the accumulation steps.
        """
        if self.seen and (weight is None) != (self._weight == 0.0):
            raise ConfigError(
                "micro-batches with and without a weight in one accumulation window; give "
                "backward() a weight for all of them or for none"
            )
        if weight is not None and not weight > 0:
            raise ConfigError(f"weight {weight} of a micro-batch must be positive")
        self.seen += 1
        self._was_forced |= self.forced is not None
        self._divided = divided
        self._weight += weight or 0.0

    def divisor(self, *, closing: bool) -> float:
        """What the sum over ranks and micro-batches is divided by.

        Before the window closes this is the expected value, equal on all ranks; `closing` gives
        the true one. With weights all ranks must call this together: it sums over the group.
        """
        world = self._comm.world_size
        if self._weight:
            return self._weighted(closing)
        if self._divided:
            return world
        if closing and self._was_forced:
            return world * self.seen
        return world * (
            min(self.seen, self.accumulation_steps) if closing else self.accumulation_steps
        )

    def close(self) -> None:
        """The window's step was taken: begin another."""
        self.seen, self._weight, self._was_forced = 0, 0.0, False

    def _weighted(self, closing: bool) -> float:
        if closing or self._usual_weight is None:
            total = self._comm.sum_number(self._weight, label="batch weights")
            if not closing:
                total *= self.accumulation_steps
            self._usual_weight = total
        return self._usual_weight
