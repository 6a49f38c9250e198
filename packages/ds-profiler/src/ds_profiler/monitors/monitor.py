"""What a monitor is, and what all of ours share."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch.distributed as dist

logger = logging.getLogger(__name__)

Event = tuple[str, Any, int]
"""`(label, value, step)`; the value is a number or a tensor of one element."""


class Monitor(Protocol):
    """Something that takes scalars."""

    def write_events(self, event_list: Sequence[Event]) -> None:
        """Write events. Never raises because of what lies behind it."""


class RankZeroMonitor(ABC):
    """Writes on rank 0 only; a failing back end warns once and is left alone from then on.

    A run must not end because a dashboard is full or away, so what the back end raises while
    writing is logged here and goes no further. Faults of the set-up are raised.

    Args:
        enabled: False makes an object that ignores events.
    """

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled and _rank() == 0
        self._told = False
        if self.enabled:
            self._open()

    def write_events(self, event_list: Sequence[Event]) -> None:
        """Write events, if this is rank 0 and nothing failed before."""
        if not self.enabled:
            return
        try:
            self._write(self._readable(event_list))
        except Exception as error:  # the promise of this class; reported below
            self.enabled = False
            logger.warning(
                "%s failed and is switched off, training goes on: %s: %s",
                type(self).__name__,
                type(error).__name__,
                error,
            )

    def _readable(self, event_list: Sequence[Event]) -> list[tuple[str, float, int]]:
        """The events that hold numbers; the first that does not is told, those are left out."""
        events = []
        for event in event_list:
            try:
                label, value, step = event
                events.append((str(label), float(value), int(step)))
            except (TypeError, ValueError, RuntimeError, OverflowError) as error:
                if not self._told:
                    self._told = True
                    kind = type(self).__name__
                    logger.warning("%s leaves out what is no number: %r: %s", kind, event, error)
        return events

    def close(self) -> None:
        """Finish writing; idempotent."""
        if self.enabled:
            self.enabled = False
            self._close()

    @abstractmethod
    def _open(self) -> None:
        """Set up the back end."""

    @abstractmethod
    def _write(self, events: Sequence[tuple[str, float, int]]) -> None:
        """Hand events to the back end; may raise."""

    @abstractmethod
    def _close(self) -> None:
        """Finish."""


def _rank() -> int:
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
