"""Fakes that satisfy the contracts, for tests of whatever is built on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ds_core.comm import DONE
from ds_core.contracts import Pending, StepEvent
from ds_core.errors import StateError

__all__ = ["AdamWFlatStep", "MemoryTensorStore", "RecordingHook"]


class MemoryTensorStore:
    """A `TensorStore` that keeps bytes in memory."""

    def __init__(self) -> None:
        self._files: dict[str, bytearray] = {}
        self._closed = False

    def write(self, key: str, tensor: Tensor, offset: int = 0) -> Pending:
        self._check(tensor, offset)
        data = tensor.detach().view(torch.uint8).numpy().tobytes()
        file = self._files.setdefault(key, bytearray())
        if len(file) < offset:
            file.extend(bytes(offset - len(file)))
        file[offset : offset + len(data)] = data
        return DONE

    def read(self, key: str, out: Tensor, offset: int = 0) -> Pending:
        self._check(out, offset)
        stored = self._files.get(key)
        have = 0 if stored is None else max(0, len(stored) - offset)
        if stored is None or have < out.nbytes:
            return _Failed(OSError(f"'{key}' at {offset}: wanted {out.nbytes} bytes, has {have}"))
        data = bytes(stored[offset : offset + out.nbytes])
        if data:
            out.view(torch.uint8).copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        return DONE

    def close(self) -> None:
        self._closed = True
        self._files.clear()

    def _check(self, tensor: Tensor, offset: int) -> None:
        if self._closed:
            raise StateError("this store is closed")
        if tensor.dim() != 1 or not tensor.is_contiguous():
            raise ValueError(f"needs a flat contiguous tensor, got shape {tuple(tensor.shape)}")
        if offset < 0:
            raise ValueError(f"offset {offset} is negative")


class _Failed:
    """Work that ended in an error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def wait(self) -> None:
        raise self._error

    def done(self) -> bool:
        return True


class AdamWFlatStep:
    """A `FlatStep` of AdamW (Loshchilov and Hutter, 2019) in plain torch operations."""

    state_names = ("exp_avg", "exp_avg_sq")

    def __call__(
        self,
        master: Tensor,
        grad: Tensor,
        states: Mapping[str, Tensor],
        *,
        out: Tensor | None,
        hyper: Mapping[str, Any],
        step: int,
        grad_scale: float,
    ) -> Pending:
        beta1, beta2 = hyper["betas"]
        gradient = grad.to(master.dtype) * grad_scale
        with torch.no_grad():
            master.mul_(1 - hyper["lr"] * hyper["weight_decay"])
            mean, square = states["exp_avg"], states["exp_avg_sq"]
            mean.lerp_(gradient, 1 - beta1)
            square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            denominator = (square.sqrt() / (1 - beta2**step) ** 0.5).add_(hyper["eps"])
            master.addcdiv_(mean, denominator, value=-hyper["lr"] / (1 - beta1**step))
            if out is not None:
                out.copy_(master)
        return DONE


class RecordingHook:
    """A hook that remembers the phases it saw, and has state."""

    key = "recording"

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.events: list[StepEvent] = []

    def before_forward(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self.phases.append("before_forward")
        return args, kwargs

    def after_forward(self, output: Any) -> None:
        self.phases.append("after_forward")

    def before_backward(self, loss: Tensor) -> None:
        self.phases.append("before_backward")

    def after_backward(self) -> None:
        self.phases.append("after_backward")

    def before_step(self) -> None:
        self.phases.append("before_step")

    def after_step(self, event: StepEvent) -> None:
        self.phases.append("after_step")
        self.events.append(event)

    def state_dict(self) -> dict[str, Any]:
        return {"steps": len(self.events)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.restored = state["steps"]
