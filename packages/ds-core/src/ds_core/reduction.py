"""How a mean over ranks and micro-batches is made out of sums in limited formats."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ds_core.buckets import Bucket
from ds_core.comm import Communicator
from ds_core.contracts import Pending
from ds_core.errors import ConfigError
from ds_core.precision import LossScaler


class RootScale:
    """Spreads the division by `divisor` over the root of backward and the end of reduction.

    What is divided at the root (the gradient that backward starts from) costs nothing. All passes
    of one window, on all ranks, must start from the same factor: that of `Divisor.root`. A mean
    that turns out otherwise is put right at the end.
    """

    def __init__(
        self, scaler: LossScaler, *, world_size: int, predivide: float | None = None
    ) -> None:
        if predivide is not None and not predivide > 0:
            raise ConfigError(f"gradient_predivide_factor {predivide} must be positive")
        self._scaler, self._world_size, self._predivide = scaler, world_size, predivide
        self._before: float | None = None
        self._scale = 1.0

    def for_pass(self, loss: Tensor, root: float) -> Tensor:
        """The gradient to start backward from, shaped like `loss`.

        Raises:
            ConfigError: if `loss` is not one number of a floating-point format that depends on
                something trained.
        """
        if not isinstance(loss, Tensor):
            raise ConfigError(f"backward needs the loss as a tensor, got {type(loss).__name__}")
        if not loss.is_floating_point() or loss.numel() != 1:
            raise ConfigError(
                f"backward needs a loss that is one floating-point number, got a tensor of shape "
                f"{tuple(loss.shape)} and {loss.dtype}; reduce it first, e.g. loss.mean()"
            )
        if not loss.requires_grad:
            raise ConfigError(
                "backward needs a loss that depends on a trained parameter; this one is detached "
                "(computed under no_grad, or from detached tensors)"
            )
        if self._before is None:
            self._scale = self._scaler.scale
            self._before = self._choose(root)
        return torch.full_like(loss, self._scale / self._before)

    def missing(self, root: float) -> float:
        """What this rank's sums must be multiplied by before they meet those of other ranks.

        A window without any pass of ours (plain `loss.backward()`, or no backward on this rank)
        was not scaled at the root; it takes on here what the others already carry.
        """
        if self._before is not None:
            return 1.0
        self._scale = self._scaler.scale
        self._before = self._choose(root)
        return self._scale / self._before

    def remaining(self, mean: float) -> float:
        """What sums over all ranks must still be multiplied by; call `missing` first."""
        assert self._before is not None, "missing() fixes the root of the window"
        return self._before / mean

    def reset(self) -> None:
        """A new window begins."""
        self._before = None

    def _choose(self, root: float) -> float:
        if self._predivide is not None:
            return self._predivide
        if self._scaler.scale != 1.0:
            return root / self._world_size
        return root


class Message:
    """Sends buckets over the group in the communication format; `names` are for messages."""

    def __init__(
        self, comm: Communicator, dtype: torch.dtype | None, names: Mapping[nn.Parameter, str]
    ) -> None:
        self._comm, self._dtype, self._names = comm, dtype, names

    def all_reduce(self, bucket: Bucket) -> Pending:
        """Start summing the bucket over all ranks; it holds the sum after `wait()`."""
        first, more = self._names.get(bucket.params[0], "?"), len(bucket.params) - 1
        label = f"gradients of {first} and {more} more" if more else f"gradient of {first}"
        if self._dtype is None or self._dtype == bucket.buffer.dtype:
            return self._comm.all_reduce(bucket.buffer, label=label, async_op=True)
        message = bucket.buffer.to(self._dtype)
        work = self._comm.all_reduce(message, label=label, async_op=True)
        return _Unpack(work, message, bucket.buffer)


class _Unpack:
    def __init__(self, work: Pending, message: Tensor, buffer: Tensor) -> None:
        self._work, self._message, self._buffer = work, message, buffer

    def wait(self) -> None:
        self._work.wait()
        self._buffer.copy_(self._message)

    def done(self) -> bool:
        return self._work.done()


def is_model_parallel(param: nn.Parameter) -> bool:
    """True for a parameter that Megatron-style code marked as cut over the model group."""
    return bool(
        getattr(param, "tensor_model_parallel", False) or getattr(param, "model_parallel", False)
    )
