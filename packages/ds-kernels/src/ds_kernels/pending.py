"""Steps that run in the background, and the queue they run on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ds_kernels.backend import Backend, load_native
from ds_kernels.errors import BackendError
from ds_kernels.formulas import Formula
from ds_kernels.lanes import Lane, tensors

if TYPE_CHECKING:
    from ds_kernels._native import Queue, Ticket


class PendingStep:
    """A step in flight. Keeps its memory alive; leave it alone until `wait` returns."""

    def __init__(self, ticket: Ticket | None, memory: Sequence[torch.UntypedStorage]) -> None:
        self._ticket = ticket
        self._memory = memory
        self._process = os.getpid()

    def wait(self) -> None:
        """Block until the step is done; may be called again.

        Raises:
            BackendError: the step was under way when this process was forked, and stays so.
        """
        if self._ticket is not None:
            if self._is_elsewhere():
                raise BackendError("this step runs in the process that forked this one")
            self._ticket.wait()
        self._ticket, self._memory = None, ()

    def done(self) -> bool:
        """True once `wait` would not block."""
        return self._ticket is None or self._ticket.done()

    def __del__(self) -> None:
        # Freed memory must not be written: a handle that is dropped waits first.
        if not self._is_elsewhere():
            self.wait()

    def _is_elsewhere(self) -> bool:
        return not self.done() and os.getpid() != self._process


class StepQueue:
    """Runs steps one after the other on a thread of its own, which starts with the first one.

    Each step still spreads over `torch.get_num_threads()` threads. Without the compiled module a
    step runs before `submit` returns.
    """

    def __init__(self) -> None:
        self._queue: Queue | None = None

    def submit(self, backend: Backend, formula: Formula, lanes: Sequence[Lane]) -> PendingStep:
        """Start one update of `lanes`."""
        if not backend.is_native:
            backend.run(formula, lanes)
            return PendingStep(None, ())
        if self._queue is None:
            self._queue = load_native().Queue()
        ticket = backend.submit(formula, lanes, self._queue)
        # Not the tensors: one may be given other memory (`tensor.data = ...`) in the meantime.
        return PendingStep(ticket, [t.untyped_storage() for lane in lanes for t in tensors(lane)])
