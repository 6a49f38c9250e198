"""Which way CPU memory is stepped: a compiled instruction level, or plain torch without it."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import torch

from ds_kernels import reference
from ds_kernels.errors import BackendError
from ds_kernels.formulas import Adagrad, Adam, Formula, Lamb, Lion, PlainSgd, Sgd
from ds_kernels.lanes import Lane, check, row_of

if TYPE_CHECKING:  # the compiled module may be missing
    from ds_kernels._native import Queue, Ticket

FORCE_VARIABLE = "DS_KERNELS_ISA"
"""Environment variable that forces a level: a name of `LEVELS`, or torch (no compiled code)."""

LEVELS = ("scalar", "avx2", "avx512", "avx512_bf16")

_NATIVE_NAMES = {
    Adam: "adam",
    Adagrad: "adagrad",
    Lion: "lion",
    Sgd: "sgd",
    PlainSgd: "plain_sgd",
    Lamb: "lamb",
}


@dataclass(frozen=True)
class Backend:
    """A way to step CPU tensors.

    Attributes:
        name: one of `LEVELS`, or `torch`.
        reason: why this one, in one line.
    """

    name: str
    reason: str

    @property
    def is_native(self) -> bool:
        return self.name in LEVELS

    def run(self, formula: Formula, lanes: Sequence[Lane]) -> list[float]:
        """Apply one update to all lanes and return when done; the result is LAMB's trust ratios.

        Every lane is checked before the first is changed. Runs on `torch.get_num_threads()`
        threads, without the GIL.
        """
        for lane in lanes:
            check(lane)
        return self.run_checked(formula, lanes)

    def run_checked(self, formula: Formula, lanes: Sequence[Lane]) -> list[float]:
        """`run` for lanes that have passed `check`."""
        if not self.is_native:
            return [reference.update(formula, lane) for lane in lanes]
        call = getattr(load_native(), _NATIVE_NAMES[type(formula)])
        rows = [row_of(lane) for lane in lanes]
        trust: list[float] | None = call(rows, list(formula), self.name, torch.get_num_threads())
        return trust or [1.0] * len(lanes)

    def submit(self, formula: Formula, lanes: Sequence[Lane], queue: Queue) -> Ticket:
        """Start the same work on the thread of `queue` (a `_native.Queue`); not for LAMB."""
        for lane in lanes:
            check(lane)
        rows = [row_of(lane) for lane in lanes]
        call = getattr(load_native(), _NATIVE_NAMES[type(formula)])
        ticket: Ticket = call(rows, list(formula), self.name, torch.get_num_threads(), queue)
        return ticket


@functools.cache
def load_native() -> ModuleType:
    """The compiled module; ImportError if it is not there or does not fit this platform."""
    return importlib.import_module("ds_kernels._native")


@functools.cache
def native_levels() -> tuple[tuple[str, ...], str]:
    """Levels that can run here, and why there are none."""
    try:
        levels = tuple(load_native().available_levels())
    except ImportError as error:
        folder = Path(__file__).parent
        return (), f"{folder}/_native*.so cannot be loaded ({error}); reinstall ds-kernels"
    return levels, ""


def select() -> Backend:
    """The fastest way this machine has, or the one that `DS_KERNELS_ISA` demands.

    Raises:
        BackendError: the demanded level is unknown or cannot run here.
    """
    return _choice(os.environ.get(FORCE_VARIABLE, "").lower(), *native_levels())


@functools.cache
def _choice(forced: str, levels: tuple[str, ...], problem: str) -> Backend:
    if not forced:
        if levels:
            return Backend(levels[-1], f"the fastest this processor has of {', '.join(levels)}")
        return Backend("torch", f"slower path: {problem}")
    if forced == "torch" or forced in levels:
        return Backend(forced, f"demanded by {FORCE_VARIABLE}")
    if forced not in LEVELS:
        raise BackendError(
            f"{FORCE_VARIABLE}={forced} is unknown; choose one of {', '.join(LEVELS)}, torch"
        )
    why = problem or f"this processor has only {', '.join(levels)}"
    raise BackendError(f"{FORCE_VARIABLE}={forced} cannot be used: {why}")


def available() -> list[str]:
    """Every way that works here, slowest first; `torch` is always one."""
    return ["torch", *native_levels()[0]]
