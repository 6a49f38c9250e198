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


def require_name(path: str) -> None:
    """Raises `AioError` for a text that cannot name a file."""
    if "\0" in path:
        raise AioError(f"{path!r} cannot be the name of a file: it holds a null character")


class Engine:
    """Works on requests with one backend. Close it, or use it in a `with` statement."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self._notes: list[str] = []
        asked = self.options.backend
        for name in (*NATIVE_BACKENDS, "python") if asked == "auto" else (asked,):
            reason = self._start(name)
            if not reason:
                self.backend = name
                return
            if asked != "auto":
                raise BackendUnavailable(f"backend {name!r} was asked for, but {reason}")
            self.note(f"{name} not used: {reason}")
        raise AssertionError("the python backend always starts")

    def _start(self, backend: str) -> str:
        """Tries a backend; the reason why it cannot be used, or nothing."""
        native, reason = load_native()
        driver: Any = plain if backend == "python" else native  # one interface, two modules
        if driver is None:
            return reason
        faults = driver.Faults()
        for name, value in asdict(self.options.faults).items():
            setattr(faults, name, value)
        threads = self.options.intra_op_parallelism
        if backend in ("threads", "python"):
            threads = max(threads, min(self.options.queue_depth, MOST_THREADS))
        try:
            self._raw = driver.Engine(
                backend,
                block_size=self.options.block_size,
                queue_depth=self.options.queue_depth,
                single_submit=self.options.single_submit,
                overlap_events=self.options.overlap_events,
                num_threads=threads,
                faults=faults,
            )
        except OSError as error:
            return f"the kernel answers {error.strerror}"
        self._driver, self._faults = driver, faults
        return ""

    def open(
        self, path: str, *, write: bool, create: bool = False, truncate: bool = False
    ) -> RawFile:
        """Opens a file for requests of this engine."""
        require_name(path)
        try:
            file: RawFile = self._driver.File(
                os.fsencode(path),  # which need not be valid text
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
