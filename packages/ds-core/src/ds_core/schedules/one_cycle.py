"""Up and down once, momentum the other way, then decay."""

from __future__ import annotations

from typing import Any

from ds_core.schedules.base import PerGroup, Schedule, count, per_group

BETA2 = 0.99
"""Second moment factor that a cycled `betas` gets, as in the schedule this one is modelled on."""

MAX_MOMENTUM = 0.9999


class OneCycle(Schedule):
    """The 1cycle policy: rates rise from `cycle_min_lr` to `cycle_max_lr` and fall back.

    While rates rise momentum falls from `cycle_max_mom` to `cycle_min_mom`, and back. After the
    cycle the rate is divided by `1 + decay_lr_rate * n` and momentum multiplied by
    `1 + decay_mom_rate * n` (it stays below 1), where n counts `decay_step_size` steps.

    Args:
        optimizer: any object with `param_groups`.
        cycle_min_lr: rate of the first step and of the end of the cycle.
        cycle_max_lr: rate in the middle.
        decay_lr_rate: decay after the cycle.
        cycle_first_step_size: steps of the way up.
        cycle_second_step_size: steps of the way down; None (or below 1) for as many.
        cycle_first_stair_count: stairs on the way up; 0 for a straight line.
        cycle_second_stair_count: stairs on the way down; None for as many.
        decay_step_size: steps a decay; 0 for no decay.
        cycle_momentum: cycle `betas` too; without effect if the optimizer has none.
        cycle_min_mom: first of the betas in the middle of the cycle (the second is 0.99 in all).
        cycle_max_mom: first of the betas at both ends.
        decay_mom_rate: growth of the first beta after the cycle.
        last_batch_iteration: -1 to begin; else the optimizer's values are left as they are.
    """

    def __init__(
        self,
        optimizer: Any,
        cycle_min_lr: PerGroup,
        cycle_max_lr: PerGroup,
        decay_lr_rate: float = 0.0,
        cycle_first_step_size: int = 2000,
        cycle_second_step_size: int | None = None,
        cycle_first_stair_count: int = 0,
        cycle_second_stair_count: int | None = None,
        decay_step_size: int = 0,
        cycle_momentum: bool = True,
        cycle_min_mom: PerGroup = 0.8,
        cycle_max_mom: PerGroup = 0.9,
        decay_mom_rate: float = 0.0,
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, last_batch_iteration=last_batch_iteration)
        self.min_lrs = per_group(optimizer, cycle_min_lr, "cycle_min_lr")
        self.max_lrs = per_group(optimizer, cycle_max_lr, "cycle_max_lr")
        self.decay_lr_rate, self.decay_mom_rate = decay_lr_rate, decay_mom_rate
        self.first_size = count(cycle_first_step_size, "cycle_first_step_size", least=1)
        if cycle_second_step_size is None or cycle_second_step_size < 1:
            cycle_second_step_size = self.first_size
        self.second_size = count(cycle_second_step_size, "cycle_second_step_size", least=1)
        self.first_stairs = max(0, cycle_first_stair_count)
        second = cycle_second_stair_count
        self.second_stairs = self.first_stairs if second is None else max(0, second)
        self.decay_step_size = max(0, decay_step_size)
        groups = optimizer.param_groups
        self.cycle_momentum = cycle_momentum and all("betas" in group for group in groups)
        self.min_moms = per_group(optimizer, cycle_min_mom, "cycle_min_mom")
        self.max_moms = per_group(optimizer, cycle_max_mom, "cycle_max_mom")
        self._begin()

    def step(self, batch_iteration: int | None = None) -> None:
        """Go on by one, or to the given iteration, and set rates and momentum."""
        super().step(batch_iteration)

    def get_lr(self) -> list[float]:
        """The rates, a parameter group each, that belong to `last_batch_iteration`."""
        height = self._height()
        pairs = zip(self.min_lrs, self.max_lrs, strict=True)
        decay = 1 + self.decay_lr_rate * self._decays()
        return [(low + (high - low) * height) / decay for low, high in pairs]

    def get_mom(self) -> list[tuple[float, float]] | None:
        """`betas` of each group at `last_batch_iteration`; None if momentum is not cycled."""
        if not self.cycle_momentum:
            return None
        height = self._height()
        growth = 1 + self.decay_mom_rate * self._decays()
        pairs = zip(self.min_moms, self.max_moms, strict=True)
        moms = [(high - (high - low) * height) * growth for low, high in pairs]
        return [(min(mom, MAX_MOMENTUM), BETA2) for mom in moms]

    def _apply(self) -> None:
        super()._apply()
        moms = self.get_mom()
        if moms is None:
            return
        if self.last_batch_iteration < 0:
            moms = [(low, BETA2) for low in self.min_moms]
        for group, betas in zip(self.optimizer.param_groups, moms, strict=True):
            group["betas"] = betas

    def _height(self) -> float:
        """Where in the cycle: 0 at both ends, 1 in the middle."""
        step = self.last_batch_iteration + 1
        if step <= self.first_size:
            return _stair(step, self.first_size, self.first_stairs)
        left = max(0, self.first_size + self.second_size - step)
        return _stair(left, self.second_size, self.second_stairs)

    def _decays(self) -> float:
        after = self.last_batch_iteration + 1 - self.first_size - self.second_size
        return after / self.decay_step_size if after > 0 and self.decay_step_size else 0.0


def _stair(step: int, size: int, stairs: int) -> float:
    """The share `step / size`, rounded down to a stair if there are stairs."""
    return (step * stairs // size) / stairs if stairs else step / size
