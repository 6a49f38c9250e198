"""Make a schedule from its name and parameters, as they stand in a config."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from typing import Any

from ds_core.errors import ConfigError
from ds_core.schedules.base import Schedule
from ds_core.schedules.exponential import WarmupExpDecayExp
from ds_core.schedules.one_cycle import OneCycle
from ds_core.schedules.range_test import LRRangeTest
from ds_core.schedules.warmup import WarmupCosineLR, WarmupDecayLR, WarmupLR

SCHEDULES: Mapping[str, type[Schedule]] = {
    "LRRangeTest": LRRangeTest,
    "OneCycle": OneCycle,
    "WarmupLR": WarmupLR,
    "WarmupDecayLR": WarmupDecayLR,
    "WarmupCosineLR": WarmupCosineLR,
    "WarmupExpDecayExp": WarmupExpDecayExp,
    "warmup_exp_decay_exp": WarmupExpDecayExp,
}
"""Every schedule by the names it goes by."""


def build_schedule(name: str, optimizer: Any, params: Mapping[str, Any] | None = None) -> Schedule:
    """The schedule `name` over `optimizer`.

    Raises:
        ConfigError: naming an unknown schedule, every unknown parameter, every missing one, or
            a value that cannot be used.
    """
    params = dict(params or {})
    faults = schedule_faults(name, params)
    if faults:
        raise ConfigError("; ".join(f"scheduler.{path}: {text}" for path, text in faults))
    return SCHEDULES[name](optimizer, **params)


def schedule_faults(name: str, params: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(path, what is wrong) of each fault in the names of a schedule and its parameters."""
    if name not in SCHEDULES:
        known = ", ".join(sorted(SCHEDULES))
        return [("type", f"unknown schedule {name!r}{_nearest(name, SCHEDULES)} (known: {known})")]
    accepted = inspect.signature(SCHEDULES[name]).parameters
    known_names = [key for key in accepted if key != "optimizer"]
    faults = [
        (f"params.{key}", f"unknown parameter of {name}{_nearest(key, known_names)}")
        for key in params
        if key not in known_names
    ]
    faults += [
        (f"params.{key}", f"{name} needs it")
        for key in known_names
        if accepted[key].default is inspect.Parameter.empty and key not in params
    ]
    return faults


def _nearest(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f", did you mean {near[0]!r}?" if near else ""
