"""The choice of a backend, and requests on open files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any, Literal, Protocol, get_args

from ds_aio import plain
from ds_aio.errors import AioError, BackendUnavailable, transfer_error
from ds_aio.faults import Faults

Backend = Literal["auto", "io_uring", "linux_aio", "threads", "python"]
NATIVE_BACKENDS = ("io_uring", "linux_aio", "threads")
LARGEST_BLOCK = 1 << 30
# More synchronous threads than this only take turns.
MOST_THREADS = 16


@dataclass(frozen=True, kw_only=True)
class Options:
    """How an engine works.

    Attributes:
        block_size: Longest single transfer in bytes.
        queue_depth: Transfers under way at once, a thread.
        single_submit: Hand transfers to the kernel one by one rather than in batches.
        overlap_events: Send further transfers while earlier ones are under way. Otherwise a queue
            is filled, then emptied.
        intra_op_parallelism: Threads that share the work of a request.
        backend: `auto` takes the best one this host offers.
        direct: Go around the page cache where the file system allows it.
        faults: What a test wants to go wrong.
    """

    block_size: int = 1 << 20
    queue_depth: int = 32
    single_submit: bool = False
    overlap_events: bool = True
    intra_op_parallelism: int = 1
    backend: Backend = "auto"
    direct: bool = True
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        _in_range("block_size", self.block_size, 1, LARGEST_BLOCK)
        _in_range("queue_depth", self.queue_depth, 1, 32768)
        _in_range("intra_op_parallelism", self.intra_op_parallelism, 1, 1024)
        if self.backend not in get_args(Backend):
            raise AioError(
                f"backend={self.backend!r}: choose one of {', '.join(get_args(Backend))}"
            )


def _in_range(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise AioError(f"{name}={value!r}: must be a whole number from {low} to {high}")


class RawRequest(Protocol):
    """A request a driver works on."""

    def done(self) -> bool: ...
    def wait(self) -> None: ...
    def outcome(self) -> tuple[int, int, bool, int]: ...


class RawFile(Protocol):
    """A file a driver has open."""

    def size(self) -> int: ...
    def sync(self, data_only: bool) -> None: ...
    def truncate(self, length: int) -> None: ...
    def close(self) -> None: ...
    @property
    def direct(self) -> bool: ...
    @property
    def refused(self) -> bool: ...
    @property
    def regular(self) -> bool: ...
    @property
    def reason(self) -> str: ...
    @property
    def offset_alignment(self) -> int: ...


def load_native() -> tuple[ModuleType | None, str]:
    """The compiled module, or None with the reason why it cannot be used."""
    try:
        from ds_aio import _native
    except ImportError as error:
        return (
            None,
            f"the compiled module ds_aio._native cannot be loaded ({error}); "
            "reinstall ds-aio from a wheel",
        )
    return _native, ""


def availability(queue_depth: int = 32) -> dict[str, str]:
    """Why each backend cannot be used here; an empty reason means that it can."""
    native, reason = load_native()
    reasons = dict.fromkeys(NATIVE_BACKENDS, reason)
    if native is not None:
        for name in NATIVE_BACKENDS:
            number = native.probe(name, queue_depth)
            reasons[name] = f"the kernel answers {os.strerror(number)}" if number else ""
    return {**reasons, "python": ""}


class Engine:
    """Works on requests with one backend. Close it, or use it in a `with` statement."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self.backend, self._notes = _choose(self.options)
        native, _ = load_native()
        driver: Any = plain if self.backend == "python" else native  # one interface, two modules
        self._driver = driver
        self._faults = driver.Faults()
        for name, value in asdict(self.options.faults).items():
            setattr(self._faults, name, value)
        threads = self.options.intra_op_parallelism
        if self.backend in ("threads", "python"):
            threads = max(threads, min(self.options.queue_depth, MOST_THREADS))
        self._raw = driver.Engine(
            self.backend,
            block_size=self.options.block_size,
            queue_depth=self.options.queue_depth,
            single_submit=self.options.single_submit,
            overlap_events=self.options.overlap_events,
            num_threads=threads,
            faults=self._faults,
        )

    def open(
        self, path: str, *, write: bool, create: bool = False, truncate: bool = False
    ) -> RawFile:
        """Opens a file for requests of this engine."""
        try:
            file: RawFile = self._driver.File(
                path,
                write=write,
                create=create,
                truncate=truncate,
                direct=self.options.direct,
                faults=self._faults,
            )
        except OSError as error:
            raise transfer_error(error.errno or 0, "opening", path) from None
        if self.options.direct and not file.direct:
            self.note(f"page cache used for {os.path.dirname(path) or '.'}: {file.reason}")
        return file

    def submit(
        self,
        file: RawFile,
        *,
        write: bool,
        ranges: Sequence[tuple[int, int]],
        segments: Sequence[tuple[int, int]],
        keep: object,
        here: bool = False,
    ) -> RawRequest:
        """Begins a transfer between file ranges (offset, bytes) and memory (address, bytes).

        `here` lets the calling thread do short work itself, and so block.
        """
        request: RawRequest = self._raw.submit(write, file, ranges, segments, keep, here)
        return request

    def note(self, text: str) -> None:
        """Adds a line to the report, once."""
        if text not in self._notes:
            self._notes.append(text)

    def report(self) -> Report:
        """Which way the bytes go, and why."""
        return Report(self.backend, tuple(self._notes))

    def close(self) -> None:
        """Ends after the requests under way are done. May be called again."""
        self._raw.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class Report:
    """The backend in use, and what was noteworthy: refusals, fallbacks, limits."""

    backend: str
    notes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([f"backend: {self.backend}", *self.notes])


def _choose(options: Options) -> tuple[str, list[str]]:
    reasons = availability(options.queue_depth)
    if options.backend != "auto":
        if reasons[options.backend]:
            raise BackendUnavailable(
                f"backend {options.backend!r} was asked for, but {reasons[options.backend]}"
            )
        return options.backend, []
    chosen = next(name for name, reason in reasons.items() if not reason)
    passed = list(reasons)[: list(reasons).index(chosen)]
    return chosen, [f"{name} not used: {reasons[name]}" for name in passed]
