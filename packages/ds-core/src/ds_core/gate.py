"""Decides whether a step is taken: unscale, test for overflow, clip."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from ds_core.clip import clip_factor
from ds_core.contracts import StepReport
from ds_core.errors import StateError
from ds_core.precision import LossScaler

logger = logging.getLogger(__name__)

PATIENCE = 20
"""Steps in a row that may be skipped at the smallest loss scale before the run is stopped."""


class StepGate:
    """Turns the norm of the scaled gradients into the factor to apply to them, or a refusal.

    Args:
        scaler: the loss scaler; told about every overflow.
        max_norm: clip the global norm to this; 0 leaves gradients alone.
    """

    def __init__(self, scaler: LossScaler, *, max_norm: float = 0.0) -> None:
        self.scaler, self.max_norm = scaler, max_norm
        self._stuck = 0

    def admit(
        self, scaled_norm: float, find_nonfinite: Callable[[], tuple[str, ...]]
    ) -> tuple[float, StepReport]:
        """The factor for the scaled gradients (unscaling and clipping), and the report.

        Args:
            scaled_norm: global norm of the gradients as they are, still multiplied by the scale.
            find_nonfinite: names the parameters with a non-finite gradient; called on refusal.

        Raises:
            StateError: after `PATIENCE` refusals in a row at the smallest scale.
        """
        scale = self.scaler.scale
        if math.isfinite(scaled_norm):
            self.scaler.update(overflow=False)
            self._stuck = 0
            norm = scaled_norm / scale
            return clip_factor(norm, self.max_norm) / scale, StepReport(norm, loss_scale=scale)
        names = find_nonfinite()
        first = names[0] if names else "?"
        self._stuck = self._stuck + 1 if self.scaler.exhausted else 0
        self.scaler.update(overflow=True)
        logger.warning(
            "step skipped: the gradient of '%s' is not finite%s", first, self._scales(scale)
        )
        if self._stuck >= PATIENCE:
            raise StateError(
                f"{self._stuck} steps in a row had non-finite gradients at loss scale {scale:g}, "
                f"which cannot fall further; first parameters: {', '.join(names[:5]) or '?'}. "
                "Look at the loss and the inputs of these steps, or lower the learning rate"
            )
        return 0.0, StepReport(scaled_norm, skipped=True, loss_scale=scale, nonfinite=names)

    def _scales(self, before: float) -> str:
        now = self.scaler.scale
        if before != now:
            return f" (loss scale {before:g}, now {now:g})"
        return "" if now == 1.0 else f" (loss scale stays {now:g})"
