"""Steps that run in the background, and the queue they run on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ds_kernels.backend import Backend, load_native
from ds_kernels.formulas import Formula
from ds_kernels.lanes import Lane

if TYPE_CHECKING:
    from ds_kernels._native import Queue, Ticket


class PendingStep:
    """A step in flight. Keeps its tensors alive; leave them alone until `wait` returns."""

    def __init__(self, ticket: Ticket | None, lanes: Sequence[Lane]) -> None:
        self._ticket = ticket
        self._lanes = lanes

    def wait(self) -> None:
        """Block until the step is done; may be called again."""
        if self._ticket is not None:
            self._ticket.wait()
        self._ticket, self._lanes = None, ()

    def done(self) -> bool:
        """True once `wait` would not block."""
        return self._ticket is None or self._ticket.done()

    def __del__(self) -> None:
        # Freed memory must not be written: a handle that is dropped waits first.
        self.wait()


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
        return PendingStep(backend.submit(formula, lanes, self._queue), lanes)
