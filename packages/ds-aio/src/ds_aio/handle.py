"""The handle that programs written for DeepNVMe use: transfers by file name, one `wait` for all."""

from __future__ import annotations

import errno
import os
import weakref
from typing import Any

from torch import Tensor

from ds_aio.buffers import BufferLike, as_bytes, spans
from ds_aio.engine import Backend, Engine, Options, RawFile, Report
from ds_aio.errors import AioError, TransferError, UnfitBuffer
from ds_aio.faults import Faults
from ds_aio.memory import StagingPool, aligned_tensor
from ds_aio.pending import Pending
from ds_aio.staging import StagedTransfer, is_on_device
from ds_aio.transfer import Transfer, begin

Name = str | int  # a path, or an open file's descriptor


class AioHandle:
    """Moves tensors to and from files.

    Synchronous methods return 1, the number of requests done. Asynchronous ones return 0; `wait`
    returns how many were done since the last `wait`. Failures raise `TransferError`, at once from
    synchronous methods and from `wait` otherwise, and leave the handle usable. A write creates the
    file if need be and keeps the length of a longer one. What a failed read leaves in the buffer
    is not defined, except that a read past the end of the file does not touch it.

    Args:
        block_size: Longest single transfer in bytes.
        queue_depth: Transfers under way at once, a thread.
        single_submit: Hand transfers to the kernel one by one.
        overlap_events: Send further transfers while earlier ones are under way.
        intra_op_parallelism: Threads that share the work of a request.
        backend: `auto`, or the one to insist on.
        faults: What a test wants to go wrong.
    """

    def __init__(
        self,
        block_size: int = 1048576,
        queue_depth: int = 128,
        single_submit: bool = False,
        overlap_events: bool = False,
        intra_op_parallelism: int = 1,
        *,
        backend: Backend = "auto",
        faults: Faults | None = None,
    ) -> None:
        self._engine = Engine(
            Options(
                block_size=block_size,
                queue_depth=queue_depth,
                single_submit=single_submit,
                overlap_events=overlap_events,
                intra_op_parallelism=intra_op_parallelism,
                backend=backend,
                faults=faults or Faults(),
            )
        )
        self._pending = Pending()
        self._staging = StagingPool(max(block_size, 1 << 20))
        self._locked: dict[int, weakref.ref[Tensor]] = {}
        self._freed: dict[int, weakref.ref[Tensor]] = {}

    def sync_pread(self, buffer: BufferLike, filename: Name, file_offset: int = 0) -> int:
        """Fills `buffer` from the file, from `file_offset` on."""
        self._start(buffer, filename, file_offset, write=False, here=True).wait()
        return 1

    def sync_pwrite(self, buffer: BufferLike, filename: Name, file_offset: int = 0) -> int:
        """Writes `buffer` to the file, from `file_offset` on."""
        self._start(buffer, filename, file_offset, write=True, here=True).wait()
        return 1

    def async_pread(self, buffer: BufferLike, filename: Name, file_offset: int = 0) -> int:
        """Begins to fill `buffer`; leave it alone until `wait`."""
        self._pending.add(self._start(buffer, filename, file_offset, write=False, here=False))
        return 0

    def async_pwrite(self, buffer: BufferLike, filename: Name, file_offset: int = 0) -> int:
        """Begins to write `buffer`; leave it alone until `wait`."""
        self._pending.add(self._start(buffer, filename, file_offset, write=True, here=False))
        return 0

    def pread(
        self,
        buffer: BufferLike,
        filename: Name,
        validate: bool,
        *async_and_offset: Any,
        **named: Any,
    ) -> int:
        """`pread(buffer, filename, validate, async, file_offset=0)`: a read of either kind."""
        run_async, offset = _async_and_offset(async_and_offset, named)
        if run_async:
            return self.async_pread(buffer, filename, offset)
        return self.read(buffer, filename, validate, offset)

    def pwrite(
        self,
        buffer: BufferLike,
        filename: Name,
        validate: bool,
        *async_and_offset: Any,
        **named: Any,
    ) -> int:
        """`pwrite(buffer, filename, validate, async, file_offset=0)`: a write of either kind."""
        run_async, offset = _async_and_offset(async_and_offset, named)
        if run_async:
            return self.async_pwrite(buffer, filename, offset)
        return self.write(buffer, filename, validate, offset)

    def read(
        self, buffer: BufferLike, filename: Name, validate: bool = False, file_offset: int = 0
    ) -> int:
        """Reads; with `validate` the result is compared with an ordinary read."""
        self.sync_pread(buffer, filename, file_offset)
        if validate:
            _compare(buffer, filename, file_offset)
        return 1

    def write(
        self, buffer: BufferLike, filename: Name, validate: bool = False, file_offset: int = 0
    ) -> int:
        """Writes; with `validate` the file is read back the ordinary way and compared."""
        self.sync_pwrite(buffer, filename, file_offset)
        if validate:
            _compare(buffer, filename, file_offset)
        return 1

    def wait(self) -> int:
        """Waits for all asynchronous requests; how many were done. With nothing to wait for: 0.

        Raises:
            TransferError: Of the first request that failed, after all have ended.
        """
        return self._pending.wait()

    def new_cpu_locked_tensor(self, num_elem: int, example_tensor: Tensor) -> Tensor:
        """A flat tensor of the example's dtype in locked, page-aligned memory.

        It is given back with the last tensor that uses it. Over RLIMIT_MEMLOCK it works unlocked,
        and `report` says so.
        """
        tensor = aligned_tensor(
            (num_elem,), example_tensor.dtype, lock=True, on_note=self._engine.note
        )
        key = id(tensor)
        self._locked[key] = weakref.ref(tensor, lambda _: self._locked.pop(key, None))
        return tensor

    def free_cpu_locked_tensor(self, tensor: Tensor) -> bool:
        """Gives the memory back now and empties `tensor`. False if not from this handle."""
        reference = self._locked.pop(id(tensor), None)
        if reference is None or reference() is not tensor:
            return False
        tensor.set_()  # type: ignore[call-overload]  # no stub for the form without arguments
        key = id(tensor)
        self._freed[key] = weakref.ref(tensor, lambda _: self._freed.pop(key, None))
        return True

    def is_pinned(self, buffer: Tensor) -> bool:
        """True for tensors from `new_cpu_locked_tensor` and those torch has pinned."""
        known = self._locked.get(id(buffer))
        return (known is not None and known() is buffer) or buffer.is_pinned()

    def get_block_size(self) -> int:
        """Longest single transfer in bytes."""
        return self._engine.options.block_size

    def get_queue_depth(self) -> int:
        """Transfers under way at once, a thread."""
        return self._engine.options.queue_depth

    def get_single_submit(self) -> bool:
        """Whether transfers are handed to the kernel one by one."""
        return self._engine.options.single_submit

    def get_overlap_events(self) -> bool:
        """Whether transfers are sent while earlier ones are under way."""
        return self._engine.options.overlap_events

    def get_intra_op_parallelism(self) -> int:
        """Threads that share the work of a request."""
        return self._engine.options.intra_op_parallelism

    def get_alignment(self) -> int:
        """Alignment of memory that always suits direct I/O. Other memory works, with a copy."""
        return 4096

    def report(self) -> Report:
        """Which way the bytes go, and why."""
        return self._engine.report()

    def _start(
        self, buffer: BufferLike, filename: Name, offset: int, *, write: bool, here: bool
    ) -> Transfer | StagedTransfer:
        freed = self._freed.get(id(buffer))
        if freed is not None and freed() is buffer:
            raise UnfitBuffer("the tensor was freed with free_cpu_locked_tensor")
        path = f"/proc/self/fd/{filename}" if isinstance(filename, int) else os.fsdecode(filename)
        if is_on_device(buffer):
            file = self._open(path, write)

            def begin_block(block: Tensor, at: int) -> Transfer:
                placed = [(spans(block, writable=not write), at)]
                return begin(self._engine, file, path, placed, write=write)

            return StagedTransfer(buffer, self._staging, begin_block, offset, write=write)
        placed = [(spans(buffer, writable=not write), offset)]
        file = self._open(path, write)
        return begin(self._engine, file, path, placed, write=write, here=here, close=True)

    def _open(self, path: str, write: bool) -> RawFile:
        """Opens a file; where too many are open, the requests under way come to an end first."""
        try:
            return self._engine.open(path, write=write, create=write)
        except TransferError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        self._pending.settle()
        return self._engine.open(path, write=write, create=write)


def _async_and_offset(given: tuple[Any, ...], named: dict[str, Any]) -> tuple[bool, int]:
    # `async` is a keyword of the language, so these names cannot stand in the signature.
    names = ("async", "file_offset")
    if len(given) > len(names):
        raise TypeError(f"at most {3 + len(names)} arguments, got {3 + len(given)}")
    values = {**dict(zip(names, given, strict=False)), **named}
    unknown = set(values) - set(names)
    if unknown or "async" not in values:
        raise TypeError(
            f"expected async and file_offset, got {', '.join(sorted(values)) or 'neither'}"
        )
    return bool(values["async"]), int(values.get("file_offset", 0))


def _compare(buffer: BufferLike, filename: Name, offset: int) -> None:
    path = f"/proc/self/fd/{filename}" if isinstance(filename, int) else filename
    if isinstance(buffer, Tensor):
        mine = as_bytes(buffer.cpu()).numpy().tobytes()
    else:
        mine = memoryview(buffer).tobytes()
    with open(path, "rb") as file:
        file.seek(offset)
        theirs = file.read(len(mine))
    if mine != theirs:
        at = next(
            (i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), len(theirs)
        )
        raise AioError(f"validation of {path!r} failed: first difference at offset {offset + at}")


aio_handle = AioHandle
