"""A safetensors file written as a stream: one tensor after the other, the header last."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from zlib_ng.zlib_ng import crc32

from ds_core.checkpoint.manifest import StoredFile
from ds_core.errors import CheckpointError

CHUNK = 4 << 20
"""Bytes handed to the disk at a time."""

FLUSH = 64 << 20
"""Bytes after which a thread begins to force them to the disk, while more are written."""

WORKERS = 2
"""Threads that serve the two files of a rank, a flush each."""

MAX_HEADER = 64 << 20
"""Readers of safetensors refuse headers of more than 100 MB."""

HEADER_ROOM = 64
"""Header bytes that no tensor takes."""

_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
"""dtypes of the file format. Any other is stored as bytes; the manifest knows what they are."""


def bytes_of(tensor: Tensor) -> Tensor:
    """The memory of a contiguous tensor as 1-d `uint8`, not copied."""
    flat = tensor.detach().reshape(-1)
    return flat.view(torch.uint8) if flat.numel() else torch.empty(0, dtype=torch.uint8)


def host_chunks(tensor: Tensor) -> Iterator[memoryview]:
    """The bytes of a contiguous tensor in host memory, `CHUNK` at a time."""
    for chunk in torch.split(bytes_of(tensor), CHUNK):
        if chunk.numel():
            yield chunk.cpu().numpy().data


def entry_room(key: str, shape: tuple[int, ...]) -> int:
    """Upper bound of the header bytes that one tensor takes."""
    return len(json.dumps(key)) + 21 * len(shape) + 130


class TensorFile:
    """Writes `path`. `room` bytes are kept for the header: ask `fits` before `add`.

    `workers` run flushes beside the writes (they release the GIL).
    """

    def __init__(
        self,
        path: Path,
        *,
        room: int,
        workers: Executor,
        progress: Callable[[int], object] | None = None,
    ) -> None:
        self.path = path
        self._room = min(MAX_HEADER, -(-room // 8) * 8)
        self._used = HEADER_ROOM
        self._workers = workers
        self._flush: Future[None] | None = None
        self._unflushed = 0
        self._progress = progress
        self._entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        self._offset = 0
        self._file = open(path, "xb", buffering=1 << 20)  # noqa: SIM115 - closed by `close`
        self._file.write(b"\0" * (8 + self._room))

    def fits(self, key: str, shape: tuple[int, ...]) -> bool:
        """True if the header has room for one more tensor."""
        return self._used + entry_room(key, shape) <= self._room

    def add(self, key: str, tensor: Tensor, shape: tuple[int, ...]) -> tuple[int, int]:
        """Append contiguous `tensor` and list it as `shape`; returns (byte offset, crc32)."""
        if key in self._entries:
            raise CheckpointError(f"two tensors are called {key!r} in {self.path.name}")
        nbytes = tensor.numel() * tensor.element_size()
        name = _NAMES.get(str(tensor.dtype).removeprefix("torch."))
        self._entries[key] = {
            "dtype": name or "U8",
            "shape": list(shape) if name else [nbytes],
            "data_offsets": [self._offset, self._offset + nbytes],
        }
        self._used += entry_room(key, shape)
        offset, crc = 8 + self._room + self._offset, 0
        for chunk in host_chunks(tensor):
            self._file.write(chunk)
            crc = crc32(chunk, crc)
            self._wrote(len(chunk))
        self._offset += nbytes
        return offset, crc

    def _wrote(self, nbytes: int) -> None:
        if self._progress is not None:
            self._progress(nbytes)
        self._unflushed += nbytes
        if self._unflushed >= FLUSH and (self._flush is None or self._flush.done()):
            self._flushed()
            self._unflushed = 0
            self._flush = self._workers.submit(os.fdatasync, self._file.fileno())

    def _flushed(self) -> None:
        """Wait for the flush under way; an error of the disk is told only once, to it."""
        if self._flush is not None:
            self._flush.result()
            self._flush = None

    def close(self) -> StoredFile:
        """Write the header, force all to the disk, and say what is there."""
        text = json.dumps(self._entries, separators=(",", ":")).encode()
        header = self._room.to_bytes(8, "little") + text.ljust(self._room)
        self._flushed()
        self._file.seek(0)
        self._file.write(header)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        nbytes = len(header) + self._offset
        return StoredFile(self.path.name, nbytes, len(header), crc32(header))

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._flush is not None:
            self._flush.exception()  # let it end before its file is closed
        self._file.close()


def read_header(path: Path) -> tuple[int, dict[str, Any]]:
    """Size of the header, its length field included, and the tensors it lists."""
    with open(path, "rb") as file:
        room = int.from_bytes(file.read(8), "little")
        text = file.read(room) if room <= 100 << 20 else b""
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{path} is no safetensors file: {error}") from error
    entries.pop("__metadata__", None)
    return 8 + room, entries
