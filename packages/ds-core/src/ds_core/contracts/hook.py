"""What may watch or change a training step without the engine knowing its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class StepEvent:
    """The facts of a finished step, handed to `after_step`.

    Attributes:
        step: applied and skipped steps so far, this one included.
        samples: global training samples so far (all ranks).
        loss: mean loss of the window's micro-batches on this rank, detached, unscaled; a tensor,
            so that nobody who does not read it pays for a device synchronisation.
        lr: learning rate of each parameter group in this step.
        grad_norm: norm before clipping, or None.
        loss_scale: scale used in this step.
        skipped: true if the update was left out (non-finite gradients).
    """

    step: int
    samples: int
    loss: Tensor | None
    lr: tuple[float, ...]
    grad_norm: float | None
    loss_scale: float
    skipped: bool


class Hook(Protocol):
    """An object with any subset of these methods; the engine calls those that exist.

    Hooks run in the order they were given. `before_forward` may replace the arguments of the
    module; the two forward hooks run in training mode only. State, if any, is a JSON-serialisable
    dict and goes into checkpoints under `key`.
    """

    key: str

    def before_forward(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]: ...

    def after_forward(self, output: Any) -> None: ...

    def before_backward(self, loss: Tensor) -> None: ...

    def after_backward(self) -> None: ...

    def before_step(self) -> None: ...

    def after_step(self, event: StepEvent) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def close(self) -> None: ...
