"""Files whose contents move to and from tensors, arrays and other buffers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Literal

from torch import Tensor

from ds_aio.buffers import BufferLike, spans
from ds_aio.engine import Engine, Options, RawFile, Report
from ds_aio.errors import AioError, transfer_error
from ds_aio.memory import StagingPool
from ds_aio.pending import Pending
from ds_aio.staging import StagedTransfer, is_on_device
from ds_aio.transfer import Placed, Transfer, begin

Mode = Literal["r", "w", "r+"]


class File:
    """An open file. Transfers run in the background; closing waits for them.

    Any offset, length and memory address is exact. Writing never shortens a file, so overwriting
    the front of a longer one keeps its tail. Transfers that overlap in the file have no order
    among them: wait for one before starting the next.
    """

    def __init__(
        self, path: str | os.PathLike[str], mode: Mode, engine: Engine, *, owned: bool
    ) -> None:
        if mode not in ("r", "w", "r+"):
            raise AioError(f"mode {mode!r}: choose 'r', 'w' (new or emptied) or 'r+' (as it is)")
        self.path = os.fsdecode(path)
        self._engine = engine
        self._owned = owned
        self._pending = Pending()
        self._staging: StagingPool | None = None
        self._raw: RawFile | None = engine.open(
            self.path, write=mode != "r", create=mode == "w", truncate=mode == "w"
        )
        self._writes = mode != "r"

    def read_into(
        self, buffer: BufferLike | Sequence[BufferLike], offset: int = 0
    ) -> Transfer | StagedTransfer:
        """Fills `buffer`, or each of a list of buffers in turn, with the bytes from `offset` on."""
        if is_on_device(buffer):
            return self._stage(buffer, offset, write=False)
        return self.read_into_many([(buffer, offset)])

    def write(
        self, buffer: BufferLike | Sequence[BufferLike], offset: int = 0
    ) -> Transfer | StagedTransfer:
        """Writes `buffer`, or each of a list of buffers in turn, from `offset` on."""
        if is_on_device(buffer):
            return self._stage(buffer, offset, write=True)
        return self.write_many([(buffer, offset)])

    def read_into_many(self, pieces: Sequence[tuple[BufferLike, int]]) -> Transfer:
        """One transfer for many (buffer, offset) pairs: far cheaper than one each if small."""
        return self._start(((spans(b, writable=True), at) for b, at in pieces), write=False)

    def write_many(self, pieces: Sequence[tuple[BufferLike, int]]) -> Transfer:
        """One transfer for many (buffer, offset) pairs."""
        return self._start(((spans(b, writable=False), at) for b, at in pieces), write=True)

    def wait(self) -> int:
        """Waits for everything under way; the number of transfers.

        Raises:
            TransferError: The first that no `wait` of a transfer has raised yet.
        """
        return self._pending.wait()

    def sync(self) -> None:
        """Waits for everything under way and makes it durable."""
        self.wait()
        try:
            self._open_file().sync(data_only=True)
        except OSError as error:
            raise transfer_error(error.errno or 0, "sync", self.path) from None

    def truncate(self, length: int) -> None:
        """Cuts or extends the file to `length` bytes."""
        self.wait()
        try:
            self._open_file().truncate(length)
        except OSError as error:
            raise transfer_error(error.errno or 0, "truncate", self.path, offset=length) from None

    @property
    def size(self) -> int:
        """Length of the file in bytes."""
        return self._open_file().size()

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._raw is None

    def report(self) -> Report:
        """Which way the bytes go, and why."""
        return self._engine.report()

    def close(self) -> None:
        """Waits for everything under way, raises its first error, lets go of the file."""
        if self._raw is None:
            return
        raw, self._raw = self._raw, None
        try:
            self.wait()
        except AioError:
            raw.close()
            raise
        else:
            raw.close()
        finally:
            # After an interrupt transfers may be under way: the last of them closes the file.
            if self._owned:
                self._engine.close()

    def __enter__(self) -> File:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except AioError:
            # An error that is already on its way says more than what it left behind.
            if error is None:
                raise

    def _start(self, placed: Iterable[Placed], *, write: bool) -> Transfer:
        self._check(write)
        transfer = begin(self._engine, self._open_file(), self.path, placed, write=write)
        self._keep(transfer)
        return transfer

    def _stage(self, tensor: Tensor, offset: int, *, write: bool) -> StagedTransfer:
        self._check(write)
        file = self._open_file()
        if self._staging is None:
            self._staging = StagingPool(max(self._engine.options.block_size, 1 << 20))

        def begin_block(block: Tensor, at: int) -> Transfer:
            placed = [(spans(block, writable=not write), at)]
            return begin(self._engine, file, self.path, placed, write=write)

        transfer = StagedTransfer(tensor, self._staging, begin_block, offset, write=write)
        self._keep(transfer)
        return transfer

    def _check(self, write: bool) -> None:
        if write and not self._writes:
            raise AioError(f"{self.path!r} is open for reading: open it with mode 'r+' or 'w'")

    def _keep(self, transfer: Transfer | StagedTransfer) -> None:
        # Errors nobody asked for yet must still reach `wait` or `close`.
        self._pending.add(transfer, forget=True)

    def _open_file(self) -> RawFile:
        if self._raw is None:
            raise AioError(f"{self.path!r} is closed")
        return self._raw


def open(
    path: str | os.PathLike[str],
    mode: Mode = "r",
    *,
    engine: Engine | None = None,
    options: Options | None = None,
) -> File:
    """Opens `path`: 'r' to read, 'w' for a new or emptied file, 'r+' to read and write it as it is.

    Files may share an `engine`; otherwise the file has its own, made from `options`.
    """
    if engine is not None:
        return File(path, mode, engine, owned=False)
    own = Engine(options)
    try:
        return File(path, mode, own, owned=True)
    except BaseException:
        own.close()
        raise
