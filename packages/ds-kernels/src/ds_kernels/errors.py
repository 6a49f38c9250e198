"""The exceptions of ds-kernels, all derived from one root."""

from __future__ import annotations


class KernelError(Exception):
    """Root of every error this package raises on purpose."""


class TensorError(KernelError, ValueError):
    """A tensor that cannot be used: the message names it, says why and what to do."""


class OptionError(KernelError, ValueError):
    """An option or hyperparameter that is unknown, out of range or not offered."""


class BackendError(KernelError, RuntimeError):
    """A way of computing was demanded that this machine or installation does not have."""
