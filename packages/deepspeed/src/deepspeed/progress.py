"""Hooks of the meta-package: a line every so many steps, and memory by phase."""

from __future__ import annotations

import logging
from typing import Any

from deepspeed.accelerator import get_accelerator
from ds_core.contracts import StepEvent

logger = logging.getLogger(__name__)


class ProgressLog:
    """Logs step, skipped steps, learning rate and loss on rank 0 (`steps_per_print`)."""

    key = "progress_log"

    def __init__(self, every: int, *, rank: int) -> None:
        self._every, self._rank = every, rank
        self._skipped = 0

    def after_step(self, event: StepEvent) -> None:
        self._skipped += event.skipped
        if event.step % self._every or self._rank:
            return
        loss = float("nan") if event.loss is None else float(event.loss)
        rates = ", ".join(f"{rate:.4g}" for rate in event.lr)
        logger.info(
            "step=%d, skipped=%d, lr=[%s], loss=%.5f, grad_norm=%s",
            event.step,
            self._skipped,
            rates,
            loss,
            "none" if event.grad_norm is None else f"{event.grad_norm:.4g}",
        )


class MemoryLog:
    """Logs memory in use after forward, backward and step (`memory_breakdown`)."""

    key = "memory_log"

    def after_forward(self, output: Any) -> None:
        self._log("forward")

    def after_backward(self) -> None:
        self._log("backward")

    def after_step(self, event: StepEvent) -> None:
        self._log("step")

    def _log(self, phase: str) -> None:
        accelerator = get_accelerator()
        logger.info(
            "memory after %s: %.2f GiB, at most %.2f GiB",
            phase,
            accelerator.memory_allocated() / 2**30,
            accelerator.max_memory_allocated() / 2**30,
        )
