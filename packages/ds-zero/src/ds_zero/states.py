"""Moving idle training state to the host, to lend a device's memory to something else."""

from __future__ import annotations

from collections.abc import Callable, Container

import torch
from torch import Tensor

from ds_core.errors import ConfigError
from ds_zero.segments import Segment
from ds_zero.strategy import ShardedUpdate
from ds_zero.units import Unit

KINDS = ("optim_states", "hp_params", "lp_params", "lp_grads", "contiguous_grad_buffer")
"""What can be moved: moments, masters, weights, gradients, buckets."""


class StateMover:
    """Takes state off the device between steps, and brings it back.

    Args:
        update: whose state it is.
        bind_weights: lets parameters lie in a unit's new memory.
    """

    def __init__(self, update: ShardedUpdate, bind_weights: Callable[[Unit, Tensor], None]) -> None:
        self._update, self._bind_weights = update, bind_weights
        self._away: set[str] = set()

    def offload(
        self,
        include: Container[str] | None = None,
        device: str | torch.device = "cpu",
        pin_memory: bool = True,
        non_blocking: bool = False,
    ) -> None:
        """Move `include` (default: all kinds) to `device`; called between steps."""
        target = torch.device(getattr(device, "value", device))
        if target.type != "cpu":
            raise ConfigError(f"states can be moved to the cpu, not to {device!r}")
        pin = pin_memory and torch.accelerator.is_available()

        def away(value: Tensor, _unit: Unit) -> Tensor:
            moved = value.to(target, non_blocking=non_blocking)
            return moved.pin_memory() if pin and not moved.is_pinned() else moved

        for kind in KINDS:
            if include is None or _contains(include, kind):
                self._move(kind, away)
                self._away.add(kind)

    def reload(self, non_blocking: bool = False) -> None:
        """Bring everything back to where it computes."""

        def back(value: Tensor, unit: Unit) -> Tensor:
            return value.to(unit.device, non_blocking=non_blocking)

        for kind in KINDS:
            if kind in self._away:
                self._move(kind, back)
        self._away.clear()

    def _move(self, kind: str, move: Callable[[Tensor, Unit], Tensor]) -> None:
        if kind in ("lp_grads", "contiguous_grad_buffer"):
            if not self._update.gradients.used():
                self._update.gradients.release()
            return
        segments = self._update.owned.segments
        if kind == "optim_states":
            for segment in segments:
                self._move_moments(segment, move)
        elif kind == "hp_params":
            for segment in segments:
                if segment.is_master:
                    self._bind_master(segment, move(segment.master, segment.unit))
        else:
            for unit in self._update.units:
                self._move_weights(unit, move)

    def _move_moments(self, segment: Segment, move: Callable[[Tensor, Unit], Tensor]) -> None:
        for part in segment.parts:
            state = self._update.owned.state(part)
            for slot, value in state.items():
                if torch.is_tensor(value) and value.dim():
                    state[slot] = move(value, segment.unit)

    def _move_weights(self, unit: Unit, move: Callable[[Tensor, Unit], Tensor]) -> None:
        if unit.weights_leave:
            return
        self._bind_weights(unit, move(unit.weights, unit))
        for segment in self._update.owned.segments:
            if segment.unit is unit:
                was_master = segment.is_master
                segment.weights = unit.weights[segment.begin : segment.end]
                if not was_master:
                    self._bind_master(segment, segment.weights)

    def _bind_master(self, segment: Segment, master: Tensor) -> None:
        segment.master = master
        for part in segment.parts:
            part.param.data = master[part.begin : part.end]


def _contains(include: Container[str], kind: str) -> bool:
    """Names count, and so do enumeration members with such a value."""
    if kind in include:
        return True
    try:
        return any(getattr(item, "value", item) == kind for item in include)  # type: ignore[attr-defined]
    except TypeError:
        return False
