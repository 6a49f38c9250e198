"""What all learning rate schedules share: a counter, and the rates it leads to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ds_core.errors import ConfigError

PerGroup = float | Sequence[float]
"""One value for all parameter groups, or one for each."""


class Schedule:
    """A schedule that owns the learning rates of an optimizer from its construction on.

    Works with any object that has `param_groups`; call `step()` once after each optimizer step.
    The k-th step runs at the rate set before it: by the constructor for the first one.

    Attributes:
        optimizer: whose rates are set.
        last_batch_iteration: -1 before the first `step`, then 0, 1, ...
    """

    def __init__(self, optimizer: Any, *, last_batch_iteration: int) -> None:
        self.optimizer = optimizer
        self.last_batch_iteration = count(last_batch_iteration, "last_batch_iteration", least=-1)

    def get_lr(self) -> list[float]:
        """The rates, a parameter group each, that belong to `last_batch_iteration`."""
        raise NotImplementedError

    def get_last_lr(self) -> list[float]:
        """The rates that were set last."""
        return list(self._last_lr)

    def step(self, last_batch_iteration: int | None = None) -> None:
        """Go on by one, or to the given iteration, and set the rates."""
        if last_batch_iteration is None:
            last_batch_iteration = self.last_batch_iteration + 1
        self.last_batch_iteration = last_batch_iteration
        self._apply()

    def state_dict(self) -> dict[str, Any]:
        """The counter; everything else comes from the constructor."""
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, sd: dict[str, Any]) -> None:
        """Go to the iteration of `sd` and set the rates that belong to it."""
        self.last_batch_iteration = sd["last_batch_iteration"]
        self._apply()

    def _begin(self) -> None:
        """Last line of each constructor: set the rates of the first step."""
        if self.last_batch_iteration == -1:
            self._apply()
        else:  # resumed: the optimizer already carries its rates
            self._last_lr = [float(group["lr"]) for group in self.optimizer.param_groups]

    def _apply(self) -> None:
        self._last_lr = self.get_lr()
        set_rates(self.optimizer.param_groups, self._last_lr)


def set_rates(param_groups: Sequence[dict[str, Any]], rates: Sequence[float]) -> list[float]:
    """Write one learning rate to each group; a rate held in a tensor is filled in place."""
    for group, rate in zip(param_groups, rates, strict=True):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
    return list(rates)


def per_group(optimizer: Any, value: PerGroup, name: str) -> list[float]:
    """`value` as a list with one entry a parameter group."""
    groups = len(optimizer.param_groups)
    if isinstance(value, list | tuple):
        if len(value) != groups:
            raise ConfigError(f"{name} has {len(value)} values for {groups} parameter groups")
        return [_number(item, name) for item in value]
    return [_number(value, name)] * groups


def own_rates(optimizer: Any) -> list[float]:
    """The learning rate that each group has now."""
    return [float(group["lr"]) for group in optimizer.param_groups]


def count(value: Any, name: str, *, least: int = 0) -> int:
    """`value` as a whole number of at least `least`; whole floats are taken as integers."""
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not whole or value < least:
        raise ConfigError(f"{name} is {value!r}: give a whole number of at least {least}")
    return int(value)


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} is {value!r}: give a number, or a list of one a group")
    return value
