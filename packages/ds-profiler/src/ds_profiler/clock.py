"""Taking marks in time on the host or on a CUDA stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks now, and tells the seconds between two marks later."""

    def mark(self) -> Any:
        """Remember this moment; does not wait for the device."""

    def between(self, begin: Any, end: Any) -> float:
        """Seconds from one mark to another; may wait until the device has passed them."""


class HostClock:
    """Wall-clock time, less what `overhead` says was spent on profiling itself.

    Args:
        now: seconds; `time.perf_counter` unless a test says otherwise.
        overhead: seconds spent so far that are to be left out.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        overhead: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._now, self._overhead = now, overhead

    def mark(self) -> float:
        """This moment."""
        return self._now() - self._overhead()

    def between(self, begin: float, end: float) -> float:
        """Seconds between two marks."""
        return max(0.0, end - begin)


class CudaClock:
    """Time on the current CUDA stream, by events: nothing waits until a time is read."""

    def mark(self) -> torch.cuda.Event:
        """An event recorded on the current stream."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def between(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Seconds between two events; waits for the later one."""
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000.0


def clock_for(device: torch.device, overhead: Callable[[], float] = lambda: 0.0) -> Clock:
    """The clock that tells how long work on `device` takes."""
    return CudaClock() if device.type == "cuda" else HostClock(overhead=overhead)
