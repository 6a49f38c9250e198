"""Progressive layer drop: the share of layers kept, falling with the step (Zhang & He 2020)."""

from __future__ import annotations

import math
from typing import Any

from ds_data.errors import RuleError


class ProgressiveLayerDrop:
    """`theta(step) = (1 - theta) * exp(-gamma * step) + theta`: from 1 down to `theta`.

    The model reads theta as the keyword argument `pld_theta` and decides with it which layers a
    micro-batch passes; `keep_probability` gives the usual choice.
    """

    def __init__(self, theta: float = 0.5, gamma: float = 0.001) -> None:
        if not 0.0 <= theta <= 1.0 or gamma < 0.0:
            raise RuleError(f"theta {theta} must lie in 0..1, gamma {gamma} must not be negative")
        self.theta = theta
        self.gamma = gamma
        self._current = 1.0

    def theta_at(self, step: int) -> float:
        return (1.0 - self.theta) * math.exp(-self.gamma * step) + self.theta

    def update_state(self, global_step: int) -> None:
        self._current = self.theta_at(global_step)

    def get_theta(self) -> float:
        return self._current

    def get_state(self) -> dict[str, Any]:
        """The keyword arguments a model's forward gets."""
        return {"progressive_layer_drop": True, "pld_theta": self._current}


def keep_probability(theta: float, layer: int, num_layers: int) -> float:
    """Chance to keep `layer` (from 0): deeper layers are dropped more, the last with 1 - theta."""
    return 1.0 - (layer + 1) / num_layers * (1.0 - theta)
