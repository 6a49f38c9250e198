"""Warm-up to a learning rate, then hold it or let it decay."""

from __future__ import annotations

import logging
import math
from typing import Any

from ds_core.errors import ConfigError
from ds_core.schedules.base import PerGroup, Schedule, count, own_rates, per_group

LOG = "log"
LINEAR = "linear"

logger = logging.getLogger(__name__)


def warmup_fraction(iteration: int, num_steps: int, warmup_type: str) -> float:
    """How far the warm-up has come at `iteration`, from 0 to 1; 1 at once without steps.

    `num_steps` is 0 or at least 2.
    """
    if iteration >= num_steps:
        return 1.0
    if iteration < 0:
        return 0.0
    if warmup_type == LOG:
        return math.log(iteration + 1) / math.log(num_steps)
    return iteration / num_steps


class WarmupLR(Schedule):
    """From `warmup_min_lr` to `warmup_max_lr` in `warmup_num_steps`, then constant.

    Args:
        optimizer: any object with `param_groups`.
        warmup_min_lr: rate of the first step; a number, or one a parameter group.
        warmup_max_lr: rate after the warm-up; None for the rate each group has now.
        warmup_num_steps: 0 gives the full rate from the first step on; 1 counts as 2.
        warmup_type: `log` or `linear`.
        last_batch_iteration: -1 to begin; else the optimizer's rates are left as they are.
    """

    def __init__(
        self,
        optimizer: Any,
        warmup_min_lr: PerGroup = 0.0,
        warmup_max_lr: PerGroup | None = None,
        warmup_num_steps: int = 1000,
        warmup_type: str = LOG,
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, last_batch_iteration=last_batch_iteration)
        self.min_lrs = per_group(optimizer, warmup_min_lr, "warmup_min_lr")
        if warmup_max_lr is None:
            self.max_lrs = own_rates(optimizer)
        else:
            self.max_lrs = per_group(optimizer, warmup_max_lr, "warmup_max_lr")
        self.warmup_num_steps = warmup_steps(warmup_num_steps)
        self.warmup_type = check_type(warmup_type)
        self._begin()

    def get_lr(self) -> list[float]:
        if self.last_batch_iteration < 0 and self.warmup_num_steps > 0:
            return list(self.min_lrs)
        fraction = self._fraction()
        pairs = zip(self.min_lrs, self.max_lrs, strict=True)
        return [low + (high - low) * fraction for low, high in pairs]

    def _fraction(self) -> float:
        return warmup_fraction(
            max(0, self.last_batch_iteration), self.warmup_num_steps, self.warmup_type
        )


class WarmupDecayLR(WarmupLR):
    """As `WarmupLR`, then in a straight line from `warmup_max_lr` to 0 at `total_num_steps`.

    The decay scales the way up from `warmup_min_lr`, so it ends at `warmup_min_lr`.
    """

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int,
        warmup_min_lr: PerGroup = 0.0,
        warmup_max_lr: PerGroup | None = 0.001,
        warmup_num_steps: int = 1000,
        warmup_type: str = LOG,
        last_batch_iteration: int = -1,
    ) -> None:
        self.total_num_steps = count(total_num_steps, "total_num_steps")
        super().__init__(
            optimizer,
            warmup_min_lr,
            warmup_max_lr,
            warmup_num_steps,
            warmup_type,
            last_batch_iteration,
        )
        warn_if_short(self.total_num_steps, self.warmup_num_steps)

    def _fraction(self) -> float:
        iteration = max(0, self.last_batch_iteration)
        if iteration < self.warmup_num_steps:
            return super()._fraction()
        steps = max(1, self.total_num_steps - self.warmup_num_steps)
        return min(1.0, max(0.0, (self.total_num_steps - iteration) / steps))


class WarmupCosineLR(Schedule):
    """Warm-up to each group's own rate, then half a cosine down to `cos_min_ratio` of it.

    Args:
        optimizer: its rates at this moment are the full ones.
        total_num_steps: where the cosine ends.
        warmup_min_ratio: where the warm-up begins, as a share of the full rate (but the very
            first step of a warm-up runs at 0).
        warmup_num_steps: 0 gives the full rate in the first step; 1 counts as 2.
        cos_min_ratio: where the cosine ends, and what stays.
        warmup_type: `log` or `linear`.
        last_batch_iteration: -1 to begin; else the optimizer's rates are left as they are.
    """

    def __init__(
        self,
        optimizer: Any,
        total_num_steps: int,
        warmup_min_ratio: float = 0.0,
        warmup_num_steps: int = 1000,
        cos_min_ratio: float = 0.0001,
        warmup_type: str = LOG,
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, last_batch_iteration=last_batch_iteration)
        self.total_num_steps = count(total_num_steps, "total_num_steps")
        self.warmup_num_steps = warmup_steps(warmup_num_steps)
        self.warmup_min_ratio = warmup_min_ratio
        self.cos_min_ratio = cos_min_ratio
        self.warmup_type = check_type(warmup_type)
        self.org_lrs = own_rates(optimizer)
        warn_if_short(self.total_num_steps, self.warmup_num_steps)
        self._begin()

    def get_lr_ratio(self) -> float:
        """The share of the full rate at `last_batch_iteration`."""
        iteration, warmup = self.last_batch_iteration, self.warmup_num_steps
        if iteration < 0:
            return 0.0 if warmup else 1.0
        if iteration < warmup:
            gain = warmup_fraction(iteration, warmup, self.warmup_type)
            return self.warmup_min_ratio + (1.0 - self.warmup_min_ratio) * gain
        share = min(1.0, (iteration - warmup + 1) / max(1, self.total_num_steps - warmup))
        cosine = (1 + math.cos(math.pi * share)) / 2
        return max(0.0, self.cos_min_ratio + (1.0 - self.cos_min_ratio) * cosine)

    def get_lr(self) -> list[float]:
        ratio = self.get_lr_ratio()
        return [rate * ratio for rate in self.org_lrs]


def warmup_steps(value: Any) -> int:
    """0, or at least 2: one step cannot lead from one rate to another, so 1 counts as 2."""
    steps = count(value, "warmup_num_steps")
    return max(2, steps) if steps else 0


def check_type(warmup_type: str) -> str:
    if warmup_type not in (LOG, LINEAR):
        raise ConfigError(f"warmup_type is {warmup_type!r}: choose {LOG!r} or {LINEAR!r}")
    return warmup_type


def warn_if_short(total: int, warmup: int) -> None:
    if total < warmup:
        logger.warning("total_num_steps %d is less than warmup_num_steps %d", total, warmup)
