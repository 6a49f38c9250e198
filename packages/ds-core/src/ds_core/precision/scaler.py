"""Loss scales for fp16: static and dynamic.

The dynamic rule is that of Micikevicius et al., "Mixed Precision Training" (ICLR 2018), section
3.2, with hysteresis: the scale halves only when the allowance of overflows is used up, and
doubles after `window` good steps in a row.
"""

from __future__ import annotations

from typing import Protocol

from ds_core.errors import ConfigError


class LossScaler(Protocol):
    """Chooses the factor that losses are multiplied by before back-propagation."""

    scale: float

    def update(self, *, overflow: bool) -> None:
        """Learn whether the gradients of a step were non-finite."""

    @property
    def exhausted(self) -> bool:
        """True if another overflow cannot lower the scale."""

    def state_dict(self) -> dict[str, float]: ...

    def load_state_dict(self, state: dict[str, float]) -> None: ...


class StaticLossScaler:
    """A scale that never moves; 1.0 for formats that need none."""

    def __init__(self, scale: float = 1.0) -> None:
        if not scale > 0:
            raise ConfigError(f"loss scale {scale} must be positive (0 asks for a dynamic one)")
        self.scale = float(scale)

    @property
    def exhausted(self) -> bool:
        return True

    def update(self, *, overflow: bool) -> None:
        return None

    def state_dict(self) -> dict[str, float]:
        return {"scale": self.scale}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """A static scale comes from the config, not from the checkpoint."""


class DynamicLossScaler:
    """Halves on overflow, doubles after a window of good steps.

    Args:
        initial: first scale.
        window: good steps in a row after which the scale doubles.
        hysteresis: overflows tolerated before the scale halves; refilled when it doubles.
        consecutive_hysteresis: refill after every good step instead, so that only overflows in a
            row count.
        minimum: the scale never falls below this.
    """

    factor = 2.0

    def __init__(
        self,
        *,
        initial: float = 2.0**16,
        window: int = 1000,
        hysteresis: int = 2,
        consecutive_hysteresis: bool = False,
        minimum: float = 1.0,
    ) -> None:
        if window < 1 or hysteresis < 1:
            raise ConfigError(
                f"loss_scale_window {window} and hysteresis {hysteresis} must be at least 1"
            )
        if not 0 < minimum <= initial:
            raise ConfigError(
                f"min_loss_scale {minimum:g} must be positive and at most the initial scale "
                f"{initial:g}"
            )
        self.scale = float(initial)
        self.window, self.hysteresis = window, hysteresis
        self.consecutive_hysteresis, self.minimum = consecutive_hysteresis, float(minimum)
        self._good_steps = 0
        self._allowance = hysteresis

    @property
    def exhausted(self) -> bool:
        return self.scale <= self.minimum

    def update(self, *, overflow: bool) -> None:
        if overflow:
            self._good_steps = 0
            if self._allowance > 1:
                self._allowance -= 1
            else:
                self.scale = max(self.scale / self.factor, self.minimum)
            return
        self._good_steps += 1
        if self.consecutive_hysteresis:
            self._allowance = self.hysteresis
        if self._good_steps % self.window == 0:
            self._allowance = self.hysteresis
            self.scale *= self.factor

    def state_dict(self) -> dict[str, float]:
        return {
            "scale": self.scale,
            "good_steps": self._good_steps,
            "allowance": self._allowance,
        }

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.scale = float(state["scale"])
        self._good_steps = int(state.get("good_steps", 0))
        self._allowance = int(state.get("allowance", self.hysteresis))
