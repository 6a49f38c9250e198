"""Lets the stage that failed first be named by all."""

from __future__ import annotations

import logging
import time
from typing import Any

import torch.distributed as dist

from ds_pipeline.errors import PipelineError

logger = logging.getLogger(__name__)

PATIENCE = 2.0
"""Seconds to wait for the word of whoever failed first."""


class FaultBoard:
    """A place where a failing stage leaves its name, in the store of the process group.

    Args:
        me: what the others call this stage.
        engine: a word that no other engine of this run has.
    """

    def __init__(self, me: str, engine: str) -> None:
        self.me = me
        self._key = f"ds_pipeline/{engine}/first_fault"
        self._reported = False

    def report(self, error: BaseException) -> str | None:
        """Say that this stage fails, unless another one has said so before; return what it said."""
        store = self._store()
        if store is None:
            return None
        try:
            if store.check([self._key]):
                return str(store.get(self._key).decode())
            self._reported = True
            store.set(self._key, f"{self.me}: {type(error).__name__}: {error}")
        except RuntimeError as lost:  # the store's host is gone too: nobody left to tell
            logger.warning("cannot tell the other stages about the failure: %s", lost)
        return None

    def begin(self) -> None:
        """Another pass begins: what this stage said of one that it got over is past."""
        store = self._store()
        if self._reported and store is not None:
            self._reported = False
            store.delete_key(self._key)

    def explain(self, doing: str, error: Exception) -> PipelineError:
        """What to raise when a neighbour does not answer."""
        first = self._first()
        cause = (
            f"The first to fail was {first}"
            if first
            else (
                "It reported no error: it was killed, or does other things than this stage "
                "(another number of micro-batches, another schedule, data that ran out)"
            )
        )
        return PipelineError(f"{self.me} gave up {doing}. {cause}. Cause here: {error}")

    def _first(self) -> str | None:
        store = self._store()
        if store is None:
            return None
        deadline = time.monotonic() + PATIENCE
        try:
            while not store.check([self._key]):
                if time.monotonic() > deadline:
                    return None
                time.sleep(0.05)
            return str(store.get(self._key).decode())
        except RuntimeError:  # the store went with its host
            return None

    def _store(self) -> Any:  # Any: torch does not export the type of its stores everywhere
        if not (dist.is_available() and dist.is_initialized()):
            return None
        return dist.distributed_c10d._get_default_store()
