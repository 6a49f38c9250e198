"""A driver in Python, for hosts where the compiled module cannot be loaded.

Same names as `ds_aio._native`. Every byte goes through the page cache.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from ds_aio.faults import Faults as _Faults


class Faults:
    """The faults to inject: alignment and O_DIRECT do not matter here."""

    def __init__(self) -> None:
        for name, value in vars(_Faults()).items():
            setattr(self, name, value)

    fail_errno: int
    fail_offset: int
    fail_times: int
    short_limit: int


class File:
    """An open file."""

    direct = False
    refused = False
    memory_alignment = 0
    offset_alignment = 0
    reason = "the compiled module is missing"

    def __init__(
        self,
        path: bytes,
        *,
        write: bool,
        create: bool,
        truncate: bool,
        direct: bool,
        faults: Faults,
    ) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._check(os.stat(path).st_mode)
        flags = os.O_RDWR if write else os.O_RDONLY
        flags |= (os.O_CREAT if create else 0) | (os.O_TRUNC if truncate else 0) | os.O_CLOEXEC
        self.fd = os.open(path, flags, 0o666)
        info = os.fstat(self.fd)
        self.regular = stat.S_ISREG(info.st_mode)
        self.device = info.st_dev

    @staticmethod
    def _check(mode: int) -> None:
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
            raise OSError(errno.ESPIPE, os.strerror(errno.ESPIPE))

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def sync(self, data_only: bool) -> None:
        (os.fdatasync if data_only else os.fsync)(self.fd)

    def truncate(self, length: int) -> None:
        os.ftruncate(self.fd, length)

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    def __del__(self) -> None:
        if getattr(self, "fd", -1) >= 0:
            self.close()


class Request:
    """Work of the pool."""

    def __init__(self, future: Future[tuple[int, int, bool, int]], keep: object) -> None:
        self._future = future
        self._keep = keep
        self._process = os.getpid()

    def __del__(self) -> None:
        # The memory must stay as long as a thread works on it.
        if not self._future.done() and os.getpid() == self._process:
            wait([self._future])

    def done(self) -> bool:
        return self._future.done()

    def wait(self) -> None:
        if not self._future.done() and os.getpid() != self._process:
            raise RuntimeError("this transfer runs in the process that forked this one")
        self._future.result()

    def outcome(self) -> tuple[int, int, bool, int]:
        return self._future.result()


class Engine:
    """Threads that read and write."""

    def __init__(
        self,
        backend: str,
        *,
        block_size: int,
        queue_depth: int,
        single_submit: bool,
        overlap_events: bool,
        num_threads: int,
        faults: Faults,
    ) -> None:
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="ds_aio")
        self._faults = faults
        self._process = os.getpid()

    def submit(
        self,
        write: bool,
        file: File,
        ranges: Sequence[tuple[int, int]],
        segments: Sequence[tuple[int, int]],
        keep: object,
        here: bool,
    ) -> Request:
        if os.getpid() != self._process:
            raise RuntimeError(
                "this engine belongs to the process that forked this one: make one after the fork"
            )
        future = self._pool.submit(self._transfer, write, file, _cut(ranges, segments))
        return Request(future, keep)

    def close(self) -> None:
        self._pool.shutdown()

    def _transfer(
        self, write: bool, file: File, pieces: list[tuple[int, int, int]]
    ) -> tuple[int, int, bool, int]:
        done = 0
        for offset, address, length in pieces:
            memory = memoryview((ctypes.c_char * length).from_address(address)).cast("B")
            at = 0
            while at < length:
                try:
                    moved = self._move(write, file.fd, memory[at:], offset + at)
                except OSError as error:
                    return done, error.errno or errno.EIO, False, offset + at
                if moved == 0:
                    return done, 0, True, offset + at
                at += moved
                done += moved
        return done, 0, False, 0

    def _move(self, write: bool, fd: int, memory: memoryview, offset: int) -> int:
        faults = self._faults
        if faults.short_limit:
            memory = memory[: faults.short_limit]
        hit = offset <= faults.fail_offset < offset + len(memory)
        if faults.fail_errno and hit and faults.fail_times:
            faults.fail_times -= 1
            if faults.fail_errno not in (errno.EINTR, errno.ECANCELED):
                raise OSError(faults.fail_errno, os.strerror(faults.fail_errno))
        return (os.pwritev if write else os.preadv)(fd, [memory], offset)


def _cut(
    ranges: Sequence[tuple[int, int]], segments: Sequence[tuple[int, int]]
) -> list[tuple[int, int, int]]:
    """(offset, address, bytes) of runs that lie in one range and one segment."""
    pieces = []
    rest = [(address, length) for address, length in reversed(segments) if length]
    for offset, length in ranges:
        end = offset + length
        while offset < end:
            address, here = rest.pop()
            step = min(here, end - offset)
            pieces.append((offset, address, step))
            offset += step
            if step < here:
                rest.append((address + step, here - step))
    return pieces
