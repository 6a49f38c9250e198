"""Every combination of settings, measured."""

from __future__ import annotations

import itertools
import json
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ds_aio.engine import Options
from ds_aio.errors import AioError
from ds_aio.sizes import parse_size
from ds_aio.throughput import Trial, measure

_OTHER_NAMES = {"io_parallel": "intra_op_parallelism", "thread_count": "intra_op_parallelism"}


@dataclass(frozen=True)
class Space:
    """The values to try, each with each."""

    block_size: tuple[int, ...] = (256 << 10, 1 << 20, 4 << 20)
    queue_depth: tuple[int, ...] = (4, 16, 32, 64)
    intra_op_parallelism: tuple[int, ...] = (1, 2)
    single_submit: tuple[bool, ...] = (False,)
    overlap_events: tuple[bool, ...] = (True,)

    @staticmethod
    def load(path: str | Path) -> Space:
        """Reads a JSON object of lists, such as `{"block_size": ["128K", "1M"]}`.

        Raises:
            AioError: The file is missing or says something else.
        """
        try:
            return Space.parse(json.loads(Path(path).read_text()))
        except (OSError, ValueError) as error:
            raise AioError(f"sweep configuration {str(path)!r}: {error}") from error

    @staticmethod
    def parse(described: Mapping[str, Any]) -> Space:
        """Builds a space from lists by name; names that are left out keep their defaults."""
        known = {field.name for field in fields(Space)}
        if not isinstance(described, Mapping):
            raise ValueError(f"expected an object of lists, got {described!r}")
        values: dict[str, Any] = {}
        for name, given in described.items():
            own = _OTHER_NAMES.get(name, name)
            if own not in known:
                raise ValueError(f"unknown setting {name!r}; known: {', '.join(sorted(known))}")
            listed = given if isinstance(given, list) else [given]
            convert = _switch if own in ("single_submit", "overlap_events") else parse_size
            if not listed:
                raise ValueError(f"{name!r} has no values to try")
            values[own] = tuple(convert(value) for value in listed)
        return Space(**values)

    def __iter__(self) -> Iterator[Options]:
        names = [field.name for field in fields(self)]
        for values in itertools.product(*(getattr(self, name) for name in names)):
            yield Options(**dict(zip(names, values, strict=True)))

    def __len__(self) -> int:
        count = 1
        for field in fields(self):
            count *= len(getattr(self, field.name))
        return count


def _switch(value: Any) -> bool:
    if value in (True, "true", "True"):
        return True
    if value in (False, "false", "False"):
        return False
    raise ValueError(f"{value!r} is neither true nor false")


@dataclass(frozen=True)
class Point:
    """Settings and what they bring in bytes a second; None if not measured."""

    options: Options
    read: float | None
    write: float | None

    def section(self) -> dict[str, int | bool]:
        """The settings as the `aio` section of a configuration."""
        o = self.options
        return {
            "block_size": o.block_size,
            "queue_depth": o.queue_depth,
            "intra_op_parallelism": o.intra_op_parallelism,
            "single_submit": o.single_submit,
            "overlap_events": o.overlap_events,
        }


@dataclass(frozen=True)
class Plan:
    """Where and what to measure."""

    folders: Sequence[Path]
    io_size: int
    loops: int = 1
    read: bool = True
    write: bool = True
    device: str = "cpu"
    gds: bool = False
    flush_page_cache: bool = False


def sweep(plan: Plan, space: Space) -> Iterator[Point]:
    """Measures each combination in each folder; rates are means over the folders."""
    paths = [folder / f"ds_nvme_tune.{os.getpid()}.tmp" for folder in plan.folders]
    try:
        for options in space:
            yield Point(
                options,
                read=_rate(plan, paths, options, write=False) if plan.read else None,
                write=_rate(plan, paths, options, write=True) if plan.write else None,
            )
    finally:
        for path in paths:
            path.unlink(missing_ok=True)


def _rate(plan: Plan, paths: Sequence[Path], options: Options, *, write: bool) -> float:
    rates = []
    for path in paths:
        trial = Trial(
            path,
            plan.io_size,
            options,
            device=plan.device,
            gds=plan.gds,
            flush_page_cache=plan.flush_page_cache,
        )
        rates.append(statistics.median(measure(trial, write=write, loops=plan.loops)))
    return statistics.mean(rates)


def best_point(points: Sequence[Point]) -> Point:
    """The settings whose reads and writes come closest, together, to the best of each."""
    best_read = max((p.read or 0.0 for p in points), default=0.0) or 1.0
    best_write = max((p.write or 0.0 for p in points), default=0.0) or 1.0
    return max(points, key=lambda p: (p.read or 0.0) / best_read + (p.write or 0.0) / best_write)
