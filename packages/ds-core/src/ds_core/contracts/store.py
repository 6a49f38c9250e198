"""Keyed storage of flat tensors outside of main memory."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Pending(Protocol):
    """Work in flight. An error of the work is raised by `wait`."""

    def wait(self) -> None:
        """Block until done; may be called again."""

    def done(self) -> bool:
        """True once `wait` would not block."""


class TensorStore(Protocol):
    """Reads and writes ranges of named flat tensors.

    The caller owns both buffers and must leave them alone until the returned work is done.
    `offset` counts bytes. A key is any file-name-safe string; writing a new key creates it.
    """

    def write(self, key: str, tensor: Tensor, offset: int = 0) -> Pending:
        """Store 1-d contiguous `tensor` at byte `offset` of `key`."""

    def read(self, key: str, out: Tensor, offset: int = 0) -> Pending:
        """Fill 1-d contiguous `out`; `wait` raises if fewer bytes are stored."""

    def close(self) -> None:
        """Finish work in flight and delete what was stored; idempotent."""
