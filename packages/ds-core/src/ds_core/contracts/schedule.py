"""What moves the learning rate."""

from __future__ import annotations

from typing import Any, Protocol


class Schedule(Protocol):
    """Any `torch.optim.lr_scheduler.LRScheduler`, or an object that behaves like one."""

    def step(self) -> None:
        """Move on by one applied optimizer step."""

    def get_last_lr(self) -> list[float]:
        """The learning rate of each parameter group now."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...
