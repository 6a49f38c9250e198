"""Raise the learning rate steadily, to see where training diverges."""

from __future__ import annotations

from typing import Any

from ds_core.schedules.base import PerGroup, Schedule, count, per_group


class LRRangeTest(Schedule):
    """The rate is `lr_range_test_min_lr * (1 + lr_range_test_step_rate * n)`.

    Args:
        optimizer: any object with `param_groups`.
        lr_range_test_min_lr: rate of the first step; a number, or one a parameter group.
        lr_range_test_step_size: steps after which n has grown by 1.
        lr_range_test_step_rate: how steeply the rate rises.
        lr_range_test_staircase: n grows at once, not a little each step.
        last_batch_iteration: -1 to begin; else the optimizer's rates are left as they are.
    """

    def __init__(
        self,
        optimizer: Any,
        lr_range_test_min_lr: PerGroup = 0.001,
        lr_range_test_step_size: int = 2000,
        lr_range_test_step_rate: float = 1.0,
        lr_range_test_staircase: bool = False,
        last_batch_iteration: int = -1,
    ) -> None:
        super().__init__(optimizer, last_batch_iteration=last_batch_iteration)
        self.min_lr = per_group(optimizer, lr_range_test_min_lr, "lr_range_test_min_lr")
        self.step_size = count(lr_range_test_step_size, "lr_range_test_step_size", least=1)
        self.step_rate = lr_range_test_step_rate
        self.staircase = lr_range_test_staircase
        self._begin()

    def step(self, batch_iteration: int | None = None) -> None:
        """Go on by one, or to the given iteration, and set the rates."""
        super().step(batch_iteration)

    def get_lr(self) -> list[float]:
        step = self.last_batch_iteration + 1
        grown = step // self.step_size if self.staircase else step / self.step_size
        return [rate * (1 + self.step_rate * grown) for rate in self.min_lr]
