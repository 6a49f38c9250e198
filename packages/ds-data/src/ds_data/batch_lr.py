"""A learning rate that follows the batch size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from torch.optim import Optimizer

from ds_data.errors import RuleError

Scaling = Literal["linear", "sqrt", "none"]


class Schedule(Protocol):
    """Any LR scheduler of torch, or one like it."""

    optimizer: Optimizer

    def step(self) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def scale_lr(
    base_batch_size: float,
    batch_size: float,
    base_lr: float = 1.0,
    method: Scaling | None = "linear",
) -> float:
    """The learning rate for `batch_size`, given the one that suits `base_batch_size`.

    `linear` multiplies by the ratio (Goyal et al. 2017), `sqrt` by its square root, which keeps
    the variance of the gradient (Krizhevsky 2014), `none` (or None) leaves it.
    """
    if method is None or method == "none":
        return base_lr
    if base_batch_size <= 0 or batch_size <= 0:
        raise RuleError(f"batch sizes are positive, got {base_batch_size} and {batch_size}")
    if method == "linear":
        return base_lr * batch_size / base_batch_size
    if method == "sqrt":
        return base_lr * math.sqrt(batch_size / base_batch_size)
    raise RuleError(f"method is {method!r}: expected 'linear', 'sqrt' or 'none'")


class VariableBatchLR:
    """Scales the learning rate of each coming batch, alone or on top of another schedule.

    After construction the optimizer holds the rate for batch 0; after each `step()` that for the
    next batch. The schedule underneath never sees a scaled rate. Past the last batch the count
    starts again at 0 (the next epoch).

    Args:
        schedule_or_optimizer: an LR scheduler to build upon, or an optimizer whose present rates
            are the base.
        base_batch_size: the batch size the base rate was chosen for.
        batch_sizes: size of each batch of an epoch, or a callable that returns them (asked at
            each step, so that it may change from epoch to epoch).
        method: `linear`, `sqrt` or `none`, see `scale_lr`.
        first_batch: where `step(0)` goes: the batch that the coming iteration over the data begins
            with, 0 unless a loader was resumed in mid-epoch. Always 0 if None.
    """

    def __init__(
        self,
        schedule_or_optimizer: Schedule | Optimizer,
        *,
        base_batch_size: float,
        batch_sizes: Sequence[int] | Callable[[], Sequence[int]],
        method: Scaling | None = "linear",
        first_batch: Callable[[], int] | None = None,
    ) -> None:
        self._first_batch = first_batch
        is_optimizer = isinstance(schedule_or_optimizer, Optimizer)
        self._schedule: Any = None if is_optimizer else schedule_or_optimizer
        self._optimizer: Optimizer = (
            schedule_or_optimizer
            if isinstance(schedule_or_optimizer, Optimizer)
            else schedule_or_optimizer.optimizer
        )
        self.base_batch_size = base_batch_size
        self.method = method
        self._batch_sizes = batch_sizes
        self._batch = 0
        scale_lr(base_batch_size, 1, 1.0, method)  # refuses a bad size or method at once
        self._base = [float(group["lr"]) for group in self._optimizer.param_groups]
        self._write()

    @property
    def optimizer(self) -> Optimizer:
        return self._optimizer

    @property
    def last_epoch(self) -> int:
        """Index of the batch whose rate is set (torch's name for it)."""
        return self._batch

    def batch_sizes(self) -> Sequence[int]:
        return self._batch_sizes() if callable(self._batch_sizes) else self._batch_sizes

    def factor(self) -> float:
        """What the base rate is multiplied by for the coming batch."""
        sizes = self.batch_sizes()
        if not len(sizes):
            return 1.0
        size = int(sizes[self._batch % len(sizes)])
        return scale_lr(self.base_batch_size, size, 1.0, self.method)

    def step(self, epoch: int | None = None) -> None:
        """Go to the next batch; with `epoch=n`, to batch `n` of the epoch (0: where the coming
        iteration over the data begins).

        Only the plain call moves the schedule underneath: going back to the start of the data
        does not restart a warm-up.
        """
        if epoch is not None:
            begin = self._first_batch if epoch == 0 else None
            self._batch = epoch if begin is None else begin()
        else:
            self._batch += 1
            if self._batch >= len(self.batch_sizes()):
                self._batch = 0
            if self._schedule is not None:
                self._restore()
                self._schedule.step()
                self._base = [float(group["lr"]) for group in self._optimizer.param_groups]
        self._write()

    def get_lr(self) -> list[float]:
        """The scaled rate of each parameter group for the coming batch."""
        factor = self.factor()
        return [base * factor for base in self._base]

    def get_last_lr(self) -> list[float]:
        return self.get_lr()

    def state_dict(self) -> dict[str, Any]:
        inner = None if self._schedule is None else self._schedule.state_dict()
        return {"batch": self._batch, "base_lrs": list(self._base), "schedule": inner}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._batch = int(state["batch"])
        self._base = [float(lr) for lr in state["base_lrs"]]
        if self._schedule is not None and state["schedule"] is not None:
            self._schedule.load_state_dict(state["schedule"])
        self._write()

    def _restore(self) -> None:
        for group, base in zip(self._optimizer.param_groups, self._base, strict=True):
            group["lr"] = base

    def _write(self) -> None:
        for group, rate in zip(self._optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = rate
