"""Optimizers given by the user, pointed at the tensors that are really updated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from typing import Any

import torch
from torch import nn

from ds_core.errors import ConfigError

MakeOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
"""Makes an optimizer for parameter groups."""

Groups = list[dict[str, Any]]


def parameter_groups(params: Iterable[Any]) -> Groups:
    """Parameter groups from parameters, (name, parameter) pairs or groups, in the given order.

    Raises:
        ConfigError: for an empty list, a member that is no parameter, or one in two groups.
    """
    if not isinstance(params, Iterable):
        raise ConfigError(
            f"parameters are {type(params).__name__}, expected an iterable of parameters or groups"
        )
    given = list(params)
    if given and all(isinstance(entry, Mapping) for entry in given):
        for number, entry in enumerate(given):
            if "params" not in entry:
                raise ConfigError(f"parameter group {number} has no 'params', only {list(entry)}")
            _require_rate(number, entry)
        groups = [{**entry, "params": _listed(entry["params"])} for entry in given]
    else:
        groups = [{"params": _listed(given)}]
    seen: set[torch.Tensor] = set()
    for number, group in enumerate(groups):
        for param in group["params"]:
            if not isinstance(param, torch.Tensor):
                raise ConfigError(
                    f"parameter group {number} holds a {type(param).__name__}, not a parameter"
                )
            if param in seen:
                raise ConfigError(
                    f"a parameter of shape {tuple(param.shape)} stands twice in the parameter "
                    f"groups (again in group {number}); each belongs to one group"
                )
            seen.add(param)
    return groups


def _require_rate(number: int, group: Mapping[str, Any]) -> None:
    rate = group.get("lr", 0.0)
    is_number = isinstance(rate, Real | torch.Tensor) and not isinstance(rate, bool)
    if not is_number or not float(rate) >= 0:
        raise ConfigError(
            f"lr of parameter group {number} is {rate!r}: give a number of at least 0, or leave it "
            "out for that of the optimizer"
        )


def _listed(params: Any) -> list[Any]:
    if isinstance(params, torch.Tensor):
        return [params]
    return [entry[1] if isinstance(entry, tuple) else entry for entry in params]


def build_optimizer(
    groups: Groups,
    optimizer: torch.optim.Optimizer | MakeOptimizer,
    replacement: Callable[[nn.Parameter], nn.Parameter],
) -> torch.optim.Optimizer:
    """An optimizer over `replacement(param)` for each parameter, groups in the same order.

    An optimizer object is kept and re-pointed in place, with the state it already has; a factory
    is called with the replaced groups.
    """
    if isinstance(optimizer, torch.optim.Optimizer):
        _repoint(optimizer, replacement)
        return optimizer
    replaced = [
        {**group, "params": [replacement(param) for param in group["params"]]} for group in groups
    ]
    made = optimizer(replaced)
    if not isinstance(made, torch.optim.Optimizer):
        raise ConfigError(
            f"the optimizer function returned {type(made).__name__}, not a torch.optim.Optimizer"
        )
    return made


def _repoint(
    optimizer: torch.optim.Optimizer, replacement: Callable[[nn.Parameter], nn.Parameter]
) -> None:
    for group in optimizer.param_groups:
        for position, param in enumerate(group["params"]):
            new = replacement(param)
            if new is param:
                continue
            group["params"][position] = new
            if param in optimizer.state:
                state = optimizer.state.pop(param)
                optimizer.state[new] = {
                    key: value.to(new.dtype)
                    if torch.is_tensor(value) and value.shape == new.shape
                    else value
                    for key, value in state.items()
                }
