"""What may watch or change a training step without the engine knowing its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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
    """An object with a `key` and any subset of the methods below; the engine calls those it has.

        prepare_inputs(args: tuple, kwargs: dict) -> tuple[tuple, dict]
        before_forward(args: tuple, kwargs: dict) -> tuple[tuple, dict]
        after_forward(output) -> None
        before_backward(loss: Tensor) -> None
        after_backward() -> None
        before_step() -> None
        after_step(event: StepEvent) -> None
        state_dict() -> dict
        load_state_dict(state: dict) -> None
        close() -> None

    Hooks run in the order they were given. `prepare_inputs` and, after it, `before_forward` may
    replace the arguments of the module; in evaluation `prepare_inputs` runs, the two forward hooks
    do not. State is JSON-serialisable and goes
    into checkpoints under `key`.
    """

    @property
    def key(self) -> str: ...
