"""Keyed flat tensors in files of a private directory, for what does not fit in memory."""

from __future__ import annotations

import errno
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ds_aio.buffers import as_bytes, spans
from ds_aio.engine import Engine, Options, RawFile, Report
from ds_aio.errors import StoreError, UnfitBuffer
from ds_aio.gds import require_gds
from ds_aio.lease import Lease
from ds_aio.memory import StagingPool, aligned_tensor
from ds_aio.sections import AioSection
from ds_aio.staging import StagedTransfer, is_on_device
from ds_aio.transfer import Ended, Transfer, begin

LONGEST_KEY = 200
MOST_OPEN_FILES = 256
MOST_IDLE_KEYS = 64


@dataclass(frozen=True)
class _Flight:
    """Work on a byte range of a key."""

    first: int
    last: int
    write: bool
    transfer: Transfer | StagedTransfer

    def under_way(self) -> bool:
        return not self.transfer.done()

    def lost(self) -> bool:
        """A write that failed, so that the range holds something else."""
        return self.write and self.transfer.done() and not self.transfer.succeeded()


class FileStore:
    """Reads and writes ranges of named flat tensors. Safe for several threads.

    The caller owns the buffers and leaves them alone until the returned work is done. Work on
    overlapping ranges of one key is done in the order it was asked for, which makes such a call
    wait for the earlier work. What a write did not store cannot be read until it is written again:
    such a read raises the error of the write. Everything is deleted by `close`, and when the
    process ends; what a killed process left is deleted by the next store below the same directory.

    Args:
        directory: Where the private directory is made. Other jobs may use the same.
        options: How the engine works.
        prefetch_bytes: Most memory that `prefetch` may hold.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        options: Options | None = None,
        prefetch_bytes: int = 256 << 20,
    ) -> None:
        self._engine = Engine(options)
        self._lease = Lease(directory)
        self._files: OrderedDict[str, RawFile] = OrderedDict()
        self._flights: dict[str, list[_Flight]] = {}
        self._staging = StagingPool(max(self._engine.options.block_size, 1 << 20))
        self._ahead: dict[tuple[str, int, int], tuple[Tensor, Transfer]] = {}
        self._ahead_left = prefetch_bytes
        self._mutex = threading.RLock()
        self._finalizer = weakref.finalize(self, _end, self._engine, self._lease)

    @property
    def path(self) -> Path:
        """The private directory."""
        return self._lease.path

    def write(self, key: str, tensor: Tensor, offset: int = 0) -> Transfer | StagedTransfer:
        """Stores 1-d contiguous `tensor` at byte `offset` of `key`, which is created if need be."""
        with self._mutex:
            nbytes = self._check(key, tensor, offset)
            self._forget_ahead(key, offset, offset + nbytes)
            self._order(key, offset, offset + nbytes, write=True)
            return self._begin(key, self._file(key), tensor, offset, nbytes, write=True)

    def read(
        self, key: str, out: Tensor, offset: int = 0
    ) -> Transfer | StagedTransfer | Prefetched:
        """Fills 1-d contiguous `out`; `wait` raises if fewer bytes are stored."""
        with self._mutex:
            nbytes = self._check(key, out, offset)
            ahead = self._ahead.pop((key, offset, nbytes), None)
            if ahead is not None:
                self._ahead_left += nbytes
                return Prefetched(out, *ahead)
            if not self._exists(key):
                return Transfer(
                    Ended((0, errno.ENOENT, False, offset)),
                    action="read",
                    path=self._name(key),
                    offset=offset,
                    wanted=nbytes,
                )
            lost = self._order(key, offset, offset + nbytes, write=False)
            if lost is not None:
                return lost
            return self._begin(key, self._file(key), out, offset, nbytes, write=False)

    def prefetch(self, key: str, nbytes: int, offset: int = 0) -> bool:
        """Begins to read what a `read` of the same range will ask for.

        Returns False, and does nothing, when that is under way already, when the key is unknown or
        was not written, or when the memory for it is used up.
        """
        with self._mutex:
            self._check_range(key, offset, nbytes)
            place = (key, offset, nbytes)
            if place in self._ahead or nbytes > self._ahead_left or not self._exists(key):
                return False
            if self._order(key, offset, offset + nbytes, write=False) is not None:
                return False
            buffer = aligned_tensor((nbytes,), phase=offset)
            transfer = self._begin(key, self._file(key), buffer, offset, nbytes, write=False)
            if isinstance(transfer, Transfer):
                self._ahead[place] = (buffer, transfer)
                self._ahead_left -= nbytes
            return True

    def report(self) -> Report:
        """Which way the bytes go, and why."""
        return self._engine.report()

    def close(self) -> None:
        """Finishes work in flight and deletes what was stored; idempotent."""
        with self._mutex:
            for flights in self._flights.values():
                for flight in flights:
                    flight.transfer.settle()
            self._flights.clear()
            self._ahead.clear()
            self._files.clear()
            self._finalizer()

    def __enter__(self) -> FileStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check(self, key: str, tensor: Tensor, offset: int) -> int:
        if not self._finalizer.alive:
            raise StoreError(f"the store below {self._lease.path.parent} is closed")
        if tensor.dim() != 1:
            raise UnfitBuffer(
                f"key {key!r}: expected a flat tensor, got shape {tuple(tensor.shape)}"
            )
        nbytes = tensor.numel() * tensor.element_size()
        self._check_range(key, offset, nbytes)
        return nbytes

    def _check_range(self, key: str, offset: int, nbytes: int) -> None:
        if (
            not key
            or len(os.fsencode(key)) > LONGEST_KEY
            or key in (".", "..")
            or "/" in key
            or "\0" in key
        ):
            raise StoreError(f"key {key!r} is no file name of 1 to {LONGEST_KEY} bytes")
        if offset < 0 or nbytes < 0 or offset + nbytes >= 1 << 63:
            raise UnfitBuffer(f"key {key!r}: no file has {nbytes} bytes at offset {offset}")

    def _name(self, key: str) -> str:
        # The suffix keeps every key apart from the lock file.
        return os.path.join(self._lease.path, f"{key}.bin")

    def _exists(self, key: str) -> bool:
        return key in self._files or os.path.exists(self._name(key))

    def _file(self, key: str) -> RawFile:
        file = self._files.get(key)
        if file is None:
            file = self._engine.open(self._name(key), write=True, create=True)
            self._files[key] = file
            if len(self._files) > MOST_OPEN_FILES:
                # Transfers under way keep their file open by themselves.
                self._files.popitem(last=False)
        self._files.move_to_end(key)
        return file

    def _begin(
        self, key: str, file: RawFile, tensor: Tensor, offset: int, nbytes: int, *, write: bool
    ) -> Transfer | StagedTransfer:
        path = self._name(key)

        def begin_block(block: Tensor, at: int) -> Transfer:
            placed = [(spans(block, writable=not write), at)]
            return begin(self._engine, file, path, placed, write=write)

        transfer: Transfer | StagedTransfer
        if is_on_device(tensor):
            transfer = StagedTransfer(tensor, self._staging, begin_block, offset, write=write)
        else:
            transfer = begin_block(tensor, offset)
        self._flights.setdefault(key, []).append(_Flight(offset, offset + nbytes, write, transfer))
        return transfer

    def _order(
        self, key: str, first: int, last: int, *, write: bool
    ) -> Transfer | StagedTransfer | None:
        """Waits for what must come before; for a read, the write that failed to store its bytes."""
        if len(self._flights) > MOST_IDLE_KEYS:
            live = {
                k: [f for f in flights if f.under_way() or f.lost()]
                for k, flights in self._flights.items()
            }
            self._flights = {k: flights for k, flights in live.items() if flights}
        flights = self._flights.get(key, [])
        for flight in flights:
            if (write or flight.write) and flight.first < last and first < flight.last:
                flight.transfer.settle()
        flights = [f for f in flights if f.under_way() or f.lost()]
        if write:  # what is written now may make good for what was lost
            flights = [f for f in flights if not (first <= f.first and f.last <= last)]
        self._flights[key] = flights
        lost = (f.transfer for f in flights if f.lost() and f.first < last and first < f.last)
        return None if write else next(lost, None)

    def _forget_ahead(self, key: str, first: int, last: int) -> None:
        for place in list(self._ahead):
            name, offset, nbytes = place
            if name == key and offset < last and first < offset + nbytes:
                del self._ahead[place]
                self._ahead_left += nbytes


class Prefetched:
    """A read whose bytes were asked for earlier; `wait` copies them."""

    def __init__(self, out: Tensor, buffer: Tensor, transfer: Transfer) -> None:
        self._out: Tensor | None = out
        self._buffer = buffer
        self._transfer = transfer

    def done(self) -> bool:
        """True once `wait` would not block on storage."""
        return self._transfer.done()

    def wait(self) -> None:
        """Blocks until done; may be called again."""
        self._transfer.wait()
        if self._out is not None:
            out, self._out = self._out, None
            as_bytes(out).copy_(self._buffer)


def _end(engine: Engine, lease: Lease) -> None:
    engine.close()
    lease.release()


def make_store(
    directory: str | os.PathLike[str], options: Mapping[str, object] | AioSection | None = None
) -> FileStore:
    """The store that a training configuration asks for with `nvme`.

    `options` is the `aio` section, as such or as a mapping with the same keys.
    """
    section = options if isinstance(options, AioSection) else AioSection(**(options or {}))  # type: ignore[arg-type]
    if section.use_gds:
        require_gds()
    return FileStore(
        directory,
        options=Options(
            block_size=section.block_size,
            queue_depth=section.queue_depth,
            single_submit=section.single_submit,
            overlap_events=section.overlap_events,
            intra_op_parallelism=section.intra_op_parallelism,
        ),
    )
