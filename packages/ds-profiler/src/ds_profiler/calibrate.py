"""What it costs to look at an operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class _Pass(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*args, **(kwargs or {}))


def cost_of_interception(now: Callable[[], float], rounds: int = 5, calls: int = 40) -> float:
    """Seconds that a dispatch mode adds to an operator before and after its own code runs.

    The best of a few rounds on a tensor of one element; takes about two milliseconds.
    """
    tensor = torch.zeros(1)

    def run() -> float:
        begin = now()
        for _ in range(calls):
            torch.neg(tensor)
        return now() - begin

    with torch.no_grad():
        plain = min(run() for _ in range(rounds))
        with _Pass():  # type: ignore[no-untyped-call]
            seen = min(run() for _ in range(rounds))
    return max(0.0, (seen - plain) / calls)
