"""Command-line arguments that programs add to their own parsers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

_ENABLE = "Enable DeepSpeed (a flag for the program itself; the library does not read it)"
_CONFIG = "DeepSpeed JSON configuration file."

_RANGE_TEST = {
    "lr_range_test_min_lr": (float, 0.001, "First learning rate."),
    "lr_range_test_step_rate": (float, 1.0, "Growth of the rate per interval."),
    "lr_range_test_step_size": (int, 1000, "Steps of one interval."),
}
_ONE_CYCLE = {
    "cycle_first_step_size": (int, 1000, "Steps of the rising half."),
    "cycle_first_stair_count": (int, -1, "Stairs of the rising half; -1: none."),
    "cycle_second_step_size": (int, -1, "Steps of the falling half; -1: as the rising one."),
    "cycle_second_stair_count": (int, -1, "Stairs of the falling half; -1: as the rising one."),
    "decay_step_size": (int, 1000, "Steps between two decays after the cycle."),
    "cycle_min_lr": (float, 0.01, "Lowest rate of the cycle."),
    "cycle_max_lr": (float, 0.1, "Highest rate of the cycle."),
    "decay_lr_rate": (float, 0.0, "Decay of the rate after the cycle."),
    "cycle_min_mom": (float, 0.8, "Lowest momentum of the cycle."),
    "cycle_max_mom": (float, 0.9, "Highest momentum of the cycle."),
    "decay_mom_rate": (float, 0.0, "Decay of the momentum after the cycle."),
}
_WARMUP = {
    "warmup_min_lr": (float, 0, "Rate before the warm-up."),
    "warmup_max_lr": (float, 0.001, "Rate after the warm-up."),
    "warmup_num_steps": (int, 1000, "Steps of the warm-up."),
    "warmup_type": (str, "log", "Shape of the warm-up: log or linear."),
}
_COSINE = {
    "warmup_min_ratio": (float, 0.01, "Share of the rate before the warm-up."),
    "cos_min_ratio": (float, 0.01, "Share of the rate after the cosine."),
}

_SCHEDULE_ARGUMENTS = {
    "LRRangeTest": (*_RANGE_TEST, "lr_range_test_staircase"),
    "OneCycle": (*_ONE_CYCLE, "cycle_momentum"),
    "WarmupLR": tuple(_WARMUP),
    "WarmupDecayLR": tuple(_WARMUP),
    "WarmupCosineLR": (*_COSINE, "warmup_num_steps", "warmup_type"),
}

_PEAK_RATE = {
    "LRRangeTest": "lr_range_test_min_lr",
    "OneCycle": "cycle_max_lr",
    "WarmupLR": "warmup_max_lr",
    "WarmupDecayLR": "warmup_max_lr",
}


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add `--deepspeed` and `--deepspeed_config` (and their oldest names); returns `parser`."""
    group = parser.add_argument_group("DeepSpeed", "DeepSpeed configurations")
    group.add_argument("--deepspeed", default=False, action="store_true", help=_ENABLE)
    group.add_argument("--deepspeed_config", default=None, type=str, help=_CONFIG)
    group.add_argument(
        "--deepscale", default=False, action="store_true", help="Deprecated: say --deepspeed."
    )
    group.add_argument(
        "--deepscale_config", default=None, type=str, help="Deprecated: say --deepspeed_config."
    )
    return parser


def add_tuning_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add the arguments of the learning-rate schedules; returns `parser`."""
    group = parser.add_argument_group("Convergence Tuning", "Convergence tuning configurations")
    group.add_argument("--lr_schedule", type=str, default=None, help="LR schedule for training.")
    for table in (_RANGE_TEST, _ONE_CYCLE, _WARMUP, _COSINE):
        for name, (kind, default, text) in table.items():
            group.add_argument(f"--{name}", type=kind, default=default, help=text)
    group.add_argument(
        "--lr_range_test_staircase", type=_truth, default=False, help="Grow in stairs."
    )
    group.add_argument(
        "--cycle_momentum", default=False, action="store_true", help="Cycle the momentum too."
    )
    return parser


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    """The tuning arguments on the command line, with what else stands there."""
    return add_tuning_arguments(argparse.ArgumentParser()).parse_known_args()


def get_config_from_args(args: object) -> tuple[dict[str, Any] | None, str | None]:
    """`(scheduler section, None)` from parsed tuning arguments, else `(None, reason)`."""
    name = getattr(args, "lr_schedule", None)
    if name is None:
        return None, "--lr_schedule not specified on command line"
    if name not in _SCHEDULE_ARGUMENTS:
        known = ", ".join(_SCHEDULE_ARGUMENTS)
        return None, f"{name} is not a supported LR schedule; known: {known}"
    params: dict[str, Any] = {}
    _override(args, params, _SCHEDULE_ARGUMENTS[name])
    return {"type": name, "params": params}, None


def get_lr_from_config(config: Mapping[str, Any]) -> tuple[float | None, str]:
    """`(rate an optimizer should start from, "")` of a scheduler section, else `(None, reason)`."""
    for key in ("type", "params"):
        if key not in config:
            return None, f"LR schedule {key} not defined in config"
    name, params = config["type"], config["params"]
    if name not in _SCHEDULE_ARGUMENTS:
        return None, f"{name} is not a valid LR schedule"
    rate = params.get(_PEAK_RATE[name]) if name in _PEAK_RATE else None
    return (rate, "") if rate is not None else (None, f"{name} takes its rate from the optimizer")


def override_lr_range_test_params(args: object, params: dict[str, Any]) -> None:
    """Copy the arguments of `LRRangeTest` into `params`."""
    _override(args, params, _SCHEDULE_ARGUMENTS["LRRangeTest"])


def override_1cycle_params(args: object, params: dict[str, Any]) -> None:
    """Copy the arguments of `OneCycle` into `params`."""
    _override(args, params, _SCHEDULE_ARGUMENTS["OneCycle"])


def override_warmupLR_params(args: object, params: dict[str, Any]) -> None:
    """Copy the arguments of the warm-up schedules into `params`."""
    _override(args, params, tuple(_WARMUP))


def override_params(args: object, params: dict[str, Any]) -> None:
    """Copy the arguments of every schedule into `params`."""
    override_lr_range_test_params(args, params)
    override_1cycle_params(args, params)
    override_warmupLR_params(args, params)


def _override(args: object, params: dict[str, Any], names: tuple[str, ...]) -> None:
    """Copy what `args` has; -1 stands for "as the other half" and is left out."""
    for name in names:
        value = getattr(args, name, None)
        if value is not None and not (name in _ONE_CYCLE and value == -1):
            params[name] = value


def _truth(text: str) -> bool:
    words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
    if text.lower() not in words:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return words[text.lower()]
