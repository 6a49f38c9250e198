"""Schedules of difficulty: how hard the samples may be at each step."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from numbers import Real
from typing import Any

from ds_data.errors import RuleError

DifficultyFn = Callable[[int], int]

_NEEDS = {
    "fixed_linear": ("total_curriculum_step", "difficulty_step"),
    "fixed_root": ("total_curriculum_step", "difficulty_step", "root_degree"),
    "fixed_discrete": ("difficulty", "max_step"),
    "custom": (),
}


def root_schedule(
    least: int, most: int, *, steps: int, multiple: int = 1, degree: float = 1.0
) -> DifficultyFn:
    """`(step / steps) ** (1 / degree)` of the way from `least` to `most`; degree 1 is linear.

    Difficulties are multiples of `multiple`, the first one not below `least`; `most` is reached
    at `steps` exactly, even if it is no multiple.
    """
    if steps < 1 or multiple < 1 or not degree > 0:
        raise RuleError(
            f"total_curriculum_step {steps} and difficulty_step {multiple} must be at least 1, "
            f"root_degree {degree} above 0"
        )
    first = min(-(-least // multiple) * multiple, most)

    def difficulty(step: int) -> int:
        if step >= steps:
            return most
        way = (max(step, 0) / steps) ** (1.0 / degree)
        exact = int(way * (most - least) + least)
        return max(first, min(exact // multiple * multiple, most))

    return difficulty


def discrete_schedule(difficulties: list[int], last_steps: list[int]) -> DifficultyFn:
    """`difficulties[i]` up to and including step `last_steps[i]`; the last one from there on."""
    if len(difficulties) != len(last_steps) + 1:
        raise RuleError(
            f"{len(difficulties)} difficulties need {len(difficulties) - 1} entries in max_step, "
            f"got {len(last_steps)}: the last difficulty has no end"
        )
    if any(later <= earlier for earlier, later in pairwise(last_steps)):
        raise RuleError(f"max_step {last_steps} must increase")
    return lambda step: difficulties[bisect_left(last_steps, step)]


def _number(config: Mapping[str, Any], key: str, value: Any = None) -> float:
    value = config[key] if value is None else value
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise RuleError(f"{key} is {config[key]!r}: expected a number")
    return float(value)


def _whole(config: Mapping[str, Any], key: str) -> int:
    return int(_number(config, key))


def _wholes(config: Mapping[str, Any], key: str) -> list[int]:
    if isinstance(config[key], str) or not isinstance(config[key], Sequence):
        raise RuleError(f"{key} is {config[key]!r}: expected a list of numbers")
    return [int(_number(config, key, value)) for value in config[key]]


class CurriculumScheduler:
    """The difficulty of the present step.

    Args:
        config: `min_difficulty`, `max_difficulty`, `schedule_type` (`fixed_linear`, `fixed_root`,
            `fixed_discrete`, `custom`) and its `schedule_config`.

    Difficulty is never below the first multiple of `difficulty_step` from `min_difficulty` on,
    nor above `max_difficulty`; only a `custom` schedule may fall.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        for key in ("min_difficulty", "max_difficulty", "schedule_type"):
            if config.get(key) is None:
                raise RuleError(f"a curriculum needs {key!r}")
        self.min_difficulty = _whole(config, "min_difficulty")
        self.max_difficulty = _whole(config, "max_difficulty")
        if not 0 <= self.min_difficulty <= self.max_difficulty:
            raise RuleError(
                f"min_difficulty {self.min_difficulty} and max_difficulty {self.max_difficulty}: "
                "the first must lie between 0 and the second"
            )
        self.schedule_type = str(config["schedule_type"])
        self._schedule = self._build(config.get("schedule_config") or {})
        self._custom = self.schedule_type == "custom"
        self._current = self.min_difficulty
        if self._schedule is not None:
            self._current = self.get_difficulty(0)

    def _build(self, config: Mapping[str, Any]) -> DifficultyFn | None:
        if self.schedule_type not in _NEEDS:
            raise RuleError(
                f"schedule_type is {self.schedule_type!r}: expected one of {', '.join(_NEEDS)}"
            )
        for key in _NEEDS[self.schedule_type]:
            if config.get(key) is None:
                raise RuleError(f"schedule_type {self.schedule_type!r} needs schedule_config.{key}")
        if self.schedule_type == "custom":
            return None
        if self.schedule_type == "fixed_discrete":
            levels = _wholes(config, "difficulty")
            outside = [v for v in levels if not self.min_difficulty <= v <= self.max_difficulty]
            if outside or levels != sorted(levels):
                raise RuleError(
                    f"difficulty {levels} must not fall, and stay within min_difficulty "
                    f"{self.min_difficulty} and max_difficulty {self.max_difficulty}"
                )
            return discrete_schedule(levels, _wholes(config, "max_step"))
        return root_schedule(
            self.min_difficulty,
            self.max_difficulty,
            steps=_whole(config, "total_curriculum_step"),
            multiple=_whole(config, "difficulty_step"),
            degree=_number(config, "root_degree") if self.schedule_type == "fixed_root" else 1.0,
        )

    def set_custom_get_difficulty(self, schedule_function: DifficultyFn) -> None:
        """The function from step to difficulty of a `custom` schedule."""
        if not self._custom:
            raise RuleError(
                f"schedule_type is {self.schedule_type!r}: a function is for 'custom' only"
            )
        self._schedule = schedule_function

    def get_difficulty(self, global_steps: int) -> int:
        """The difficulty of a step, without moving there."""
        if self._schedule is None:
            raise RuleError("a 'custom' curriculum needs set_custom_get_difficulty(function) first")
        wanted = int(self._schedule(global_steps))
        return min(max(wanted, self.min_difficulty), self.max_difficulty)

    def update_difficulty(self, global_steps: int) -> int:
        """Move to a step and return its difficulty."""
        difficulty = self.get_difficulty(global_steps)
        self._current = difficulty if self._custom else max(self._current, difficulty)
        return self._current

    def get_current_difficulty(self) -> int:
        return self._current

    def set_current_difficulty(self, difficulty: int) -> None:
        self._current = difficulty

    def get_state(self) -> dict[str, Any]:
        return {"current_difficulty": self._current}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._current = int(state["current_difficulty"])
