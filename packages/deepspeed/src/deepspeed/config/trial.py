"""Finds wrong parameters of an optimizer or a schedule by making one for a trial."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from deepspeed.config.faults import Fault, show
from deepspeed.config.leaf import reads_as_number
from deepspeed.optimizers import make_optimizer_factory
from ds_core.errors import ConfigError
from ds_core.schedules import build_schedule

_READ_ELSEWHERE = "max_grad_norm"  # is gradient_clipping in its old place


def optimizer_trial(name: str, params: Mapping[str, Any]) -> list[Fault]:
    """What is wrong with the parameters of an optimizer whose name is known."""
    chosen = {k: v for k, v in params.items() if v != "auto" and k != _READ_ELSEWHERE}

    def make(options: Mapping[str, Any]) -> None:
        make_optimizer_factory(name, options)([{"params": [nn.Parameter(torch.zeros(1, 1))]}])

    rate = chosen.get("lr", 0.0)
    if isinstance(rate, bool | list | tuple | dict | None):  # some optimizers ask only at a step
        return [Fault("optimizer.params.lr", f"got {show(rate)}, expected a number")]
    return _trial("optimizer.params", chosen, make)


def schedule_trial(name: str, params: Mapping[str, Any]) -> list[Fault]:
    """What is wrong with the parameters of a schedule whose parameters have known names."""
    if "auto" in params.values():
        return []
    groups = max([1, *(len(value) for value in params.values() if isinstance(value, list))])

    def make(options: Mapping[str, Any]) -> None:
        members = [{"params": [nn.Parameter(torch.zeros(1))]} for _ in range(groups)]
        with _quiet():
            build_schedule(name, torch.optim.AdamW(members), options)

    return _trial("scheduler.params", params, make)


def _trial(
    path: str, params: Mapping[str, Any], make: Callable[[Mapping[str, Any]], None]
) -> list[Fault]:
    """The fault of `params` by what `make` says of them, at the one that is to blame."""
    faults = _unusable(path, params)
    text = "" if faults else _refusal(make, params)
    if not text:
        return faults
    first, colon, rest = text.partition(": ")
    if colon and first.startswith(f"{path}."):
        return [Fault(first, rest)]
    first = text.partition(" ")[0]
    if first in params:
        return [Fault(f"{path}.{first}", text)]
    for name, value in params.items():
        if not _refusal(make, {k: v for k, v in params.items() if k != name}):
            said = text if name in text else f"got {show(value)}: {text}"
            return [Fault(f"{path}.{name}", said)]
    return [Fault(path, text)]


def _refusal(make: Callable[[Mapping[str, Any]], None], params: Mapping[str, Any]) -> str:
    try:
        make(params)
    except (ConfigError, ValueError, TypeError) as error:
        return str(error)
    return ""


def _unusable(path: str, params: Mapping[str, Any]) -> list[Fault]:
    """Values that are never meant, and that some optimizers would take for something else."""
    faults = []
    for name, value in params.items():
        items = value if isinstance(value, list | tuple) else [value]
        wanted = next(filter(None, map(_wanted, items)), None)
        if wanted is not None:
            faults.append(Fault(f"{path}.{name}", f"got {show(value)}, expected {wanted}"))
    return faults


def _wanted(value: Any) -> str | None:
    """What should stand in place of a value, or None."""
    if isinstance(value, str) and reads_as_number(value):
        return "a number (without quotes)"
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return "true or false (without quotes)"
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    """What a schedule warns of is said when the one that counts is made."""
    log = logging.getLogger("ds_core.schedules")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
