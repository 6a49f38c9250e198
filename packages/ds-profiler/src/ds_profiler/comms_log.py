"""A log of collectives: how many, how large, how fast, and which rank was late."""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ds_profiler.bandwidth import bandwidth
from ds_profiler.units import bytes_to_string, duration_to_string

logger = logging.getLogger(__name__)


class CommEvent(Protocol):
    """A finished collective (`ds_core.contracts.CommEvent`)."""

    @property
    def op(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def duration(self) -> float: ...
    @property
    def label(self) -> str: ...


Key = tuple[str, int, int]
"""Name, bytes, ranks."""


@dataclass(frozen=True, slots=True)
class CommRow:
    """All calls of one collective with one message size.

    Attributes:
        name: the collective, with its label when labels are kept apart.
        nbytes: bytes of this rank's input.
        world_size: ranks that took part.
        count: calls.
        seconds: of all calls together; `average` of one.
        algorithm_bandwidth, bus_bandwidth: bytes a second of an average call; None where there is
            no formula for the collective, or nothing was sent.
        straggled: seconds that this rank's calls took longer than the fastest rank's; None if
            the ranks were not compared.
    """

    name: str
    nbytes: int
    world_size: int
    count: int
    seconds: float
    algorithm_bandwidth: float | None
    bus_bandwidth: float | None
    straggled: float | None = None

    @property
    def average(self) -> float:
        """Seconds of one call."""
        return self.seconds / self.count


class CommsLog:
    """Observes collectives (`add_comm_observer(log)`) and sums them up.

    It only listens: it makes no call wait, and an operation it has never heard of is listed
    without bandwidths.

    Args:
        only: names of the collectives to log; empty logs all.
        verbose: log a line for each.
        by_label: keep calls apart by what they were for.
    """

    def __init__(
        self, only: Iterable[str] = (), *, verbose: bool = False, by_label: bool = False
    ) -> None:
        self._only = frozenset(only)
        self._verbose, self._by_label = verbose, by_label
        self._active = True
        self._times: dict[Key, array[float]] = {}

    def __call__(self, event: CommEvent) -> None:
        """Note one finished collective."""
        if not self._active or (self._only and event.op not in self._only):
            return
        name = f"{event.op} ({event.label})" if self._by_label and event.label else event.op
        key = (name, event.nbytes, event.world_size)
        self._times.setdefault(key, array("d")).append(event.duration)
        if self._verbose:
            speed = bandwidth(event.op, event.nbytes, event.world_size, event.duration)
            logger.info(
                "%s: %s over %d ranks in %s%s",
                name,
                bytes_to_string(event.nbytes),
                event.world_size,
                duration_to_string(event.duration),
                "" if speed is None else f", bus {bytes_to_string(speed.bus)}/s",
            )

    def pause(self) -> None:
        """Note nothing until `resume`."""
        self._active = False

    def resume(self) -> None:
        """Note collectives again."""
        self._active = True

    def reset(self) -> None:
        """Forget everything."""
        self._times.clear()

    def rows(self, others: Sequence[Mapping[Key, Sequence[float]]] = ()) -> list[CommRow]:
        """Sums by collective and size, most time first.

        Args:
            others: what `durations` gave on the ranks, this one's included, to tell stragglers.
        """
        return sorted(
            (self._row(key, times, others) for key, times in self._times.items()),
            key=lambda row: -row.seconds,
        )

    def durations(self) -> dict[Key, list[float]]:
        """Seconds of each call, in order; picklable, to be gathered from all ranks."""
        return {key: list(times) for key, times in self._times.items()}

    def _row(
        self, key: Key, times: Sequence[float], others: Sequence[Mapping[Key, Sequence[float]]]
    ) -> CommRow:
        name, nbytes, world_size = key
        seconds = sum(times)
        speed = bandwidth(name.partition(" ")[0], nbytes, world_size, seconds / len(times))
        return CommRow(
            name=name,
            nbytes=nbytes,
            world_size=world_size,
            count=len(times),
            seconds=seconds,
            algorithm_bandwidth=speed.algorithm if speed else None,
            bus_bandwidth=speed.bus if speed else None,
            straggled=_straggled(times, [rank[key] for rank in others if key in rank])
            if others
            else None,
        )

    def log_summary(
        self,
        *,
        show_straggler: bool = False,
        gather: Callable[[Any], Sequence[Any]] | None = None,
        rank: int = 0,
    ) -> str:
        """Log and return a table of all collectives.

        Args:
            show_straggler: compare the ranks; then all of them must call this.
            gather: returns what each rank passes to it (an all-gather of objects).
            rank: this process's; only rank 0 logs.
        """
        others = gather(self.durations()) if show_straggler and gather is not None else ()
        table = summary_table(self.rows(others))
        if rank == 0:
            logger.info("collectives:\n%s", table)
        return table


def _straggled(mine: Sequence[float], ranks: Sequence[Sequence[float]]) -> float:
    fastest: Iterable[float] = (min(times) for times in zip(*ranks, strict=False))
    return sum((own - best for own, best in zip(mine, fastest, strict=False)), 0.0)


def summary_table(rows: Sequence[CommRow]) -> str:
    """Rows as aligned text."""
    head = ["collective", "message", "ranks", "calls", "total", "average", "algbw", "busbw"]
    straggling = any(row.straggled is not None for row in rows)
    lines = [[*head, "straggled"] if straggling else head]
    for row in rows:
        cells = [
            row.name,
            bytes_to_string(row.nbytes),
            str(row.world_size),
            str(row.count),
            duration_to_string(row.seconds),
            duration_to_string(row.average),
            _speed(row.algorithm_bandwidth),
            _speed(row.bus_bandwidth),
        ]
        if straggling:
            cells.append("-" if row.straggled is None else duration_to_string(row.straggled))
        lines.append(cells)
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _speed(value: float | None) -> str:
    return "-" if value is None else f"{bytes_to_string(value)}/s"


@dataclass(frozen=True, slots=True)
class _Timed:
    op: str
    nbytes: int
    world_size: int
    duration: float
    label: str = ""


def note(
    log: CommsLog, op: str, nbytes: int, world_size: int, duration: float, label: str = ""
) -> None:
    """Tell `log` of a collective that was timed by hand."""
    log(_Timed(op, nbytes, world_size, duration, label))


def timed(log: CommsLog, op: str, nbytes: int, world_size: int, call: Callable[[], Any]) -> Any:
    """Run `call`, a blocking collective, and tell `log` of it."""
    begin = time.perf_counter()
    result = call()
    note(log, op, nbytes, world_size, time.perf_counter() - begin)
    return result
