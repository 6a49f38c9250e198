"""File-like objects that `torch.save` can write to: none, Python's own, and one over a handle."""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias

import torch

from ds_core.errors import DSError

# Anything with the buffer protocol; typing has no name for that before Python 3.12.
Buffer: TypeAlias = Any


class WriterError(DSError):
    """A writer cannot do what was asked for."""


class _Writer:
    """What the writers share: a path, a byte count, and use in a `with` statement."""

    def __init__(self, file_path: str | os.PathLike[str]) -> None:
        self.file_path = os.fspath(file_path)
        self.num_bytes = 0

    def write(self, buffer: Buffer) -> int:
        raise NotImplementedError

    def flush(self) -> None:
        """Nothing is held back that `close` does not write."""

    def close(self) -> None:
        """Ends the file; may be called again."""

    def tell(self) -> int:
        """Bytes written so far."""
        return self.num_bytes

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class MockFileWriter(_Writer):
    """Counts bytes and drops them: the speed of serialisation alone."""

    def write(self, buffer: Buffer) -> int:
        count = memoryview(buffer).nbytes
        self.num_bytes += count
        return count


class PyFileWriter(_Writer):
    """Python's own buffered file."""

    def __init__(self, file_path: str | os.PathLike[str]) -> None:
        super().__init__(file_path)
        self._file = open(self.file_path, "wb")  # noqa: SIM115  # closed by `close`

    def write(self, buffer: Buffer) -> int:
        count = self._file.write(buffer)
        self.num_bytes += count
        return count

    def flush(self) -> None:
        self._file.flush()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


@dataclass
class FastFileWriterConfig:
    """What a `FastFileWriter` works with.

    Attributes:
        dnvme_handle: an `aio_handle` or `gds_handle`.
        pinned_tensor: memory through which the bytes pass.
        double_buffer: fill one half while the other is written.
        num_parallel_writers: 1; writers that share a file are not offered.
        writer_rank, global_rank: kept for the caller.
    """

    dnvme_handle: Any
    pinned_tensor: torch.Tensor
    double_buffer: bool = True
    num_parallel_writers: int = 1
    writer_rank: int = 0
    global_rank: int = 0


class FastFileWriter(_Writer):
    """Writes through a handle, past the page cache, while the next bytes are collected."""

    def __init__(self, file_path: str | os.PathLike[str], config: FastFileWriterConfig) -> None:
        super().__init__(file_path)
        if config.num_parallel_writers != 1:
            raise WriterError(
                f"num_parallel_writers={config.num_parallel_writers}: several writers for one file "
                "are not offered; give each its own file"
            )
        memory = config.pinned_tensor.view(torch.uint8).reshape(-1)
        count = 2 if config.double_buffer and memory.numel() > 1 else 1
        if memory.numel() == 0:
            raise WriterError("pinned_tensor is empty: it must hold at least one byte")
        self._handle = config.dnvme_handle
        size = memory.numel() // count
        self._buffers = [memory[i * size : (i + 1) * size] for i in range(count)]
        self._filled = 0
        self._written = 0
        self._open = True
        with open(self.file_path, "wb"):
            pass  # a longer file of that name would keep its tail

    def write(self, buffer: Buffer) -> int:
        if not self._open:
            raise WriterError(f"{self.file_path!r} is closed")
        source = memoryview(buffer).cast("B")
        at = 0
        while at < len(source):
            current = self._buffers[0]
            step = min(len(source) - at, current.numel() - self._filled)
            current.numpy()[self._filled : self._filled + step] = source[at : at + step]
            self._filled += step
            at += step
            if self._filled == current.numel():
                self._send()
        self.num_bytes += len(source)
        return len(source)

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        try:
            self._send()
        finally:
            self._handle.wait()

    def _send(self) -> None:
        # At most one write is under way: the buffer that is filled next must be free.
        self._handle.wait()
        if self._filled:
            full = self._buffers[0][: self._filled]
            self._handle.async_pwrite(full, self.file_path, self._written)
            self._written += self._filled
            self._filled = 0
            self._buffers.append(self._buffers.pop(0))
            if len(self._buffers) == 1:
                self._handle.wait()
