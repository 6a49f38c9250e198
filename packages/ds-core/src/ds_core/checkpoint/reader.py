"""Reads ranges of stored tensors, whatever layout wrote them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor

from ds_core.checkpoint.layout import numel_of, overlaps
from ds_core.checkpoint.manifest import StoredTensor, dtype_of
from ds_core.checkpoint.tensor_file import CHUNK, bytes_of
from ds_core.errors import CheckpointError, StateError

_MAX_OPEN = 128


class OpenFiles:
    """Positioned reads from the files of one folder, kept open between reads.

    Reads rather than mappings: a file that shrinks meanwhile is an error, not a signal.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._handles: dict[str, int] = {}
        self._lock = Lock()
        self._closed = False

    def read(self, name: str, offset: int, out: memoryview) -> None:
        """Fill `out` from byte `offset` of file `name`."""
        handle, keep = self._handle(name)
        try:
            done = 0
            while done < len(out):
                got = os.preadv(handle, [out[done:]], offset + done)
                if got == 0:
                    raise CheckpointError(f"{self.folder / name} ends at byte {offset + done}")
                done += got
        finally:
            if not keep:
                os.close(handle)

    def _handle(self, name: str) -> tuple[int, bool]:
        with self._lock:
            if self._closed:
                raise StateError(f"the checkpoint {self.folder} has been closed")
            if name in self._handles:
                return self._handles[name], True
            try:
                handle = os.open(self.folder / name, os.O_RDONLY)
            except FileNotFoundError:
                raise CheckpointError(f"{self.folder / name} is missing") from None
            if len(self._handles) < _MAX_OPEN:
                self._handles[name] = handle
                return handle, True
            return handle, False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for handle in self._handles.values():
                os.close(handle)
            self._handles.clear()


class CheckpointReader:
    """A `ShardReader` over the files of all ranks."""

    def __init__(self, files: OpenFiles, tensors: Iterable[StoredTensor]) -> None:
        self._files = files
        self._tensors: dict[str, dict[str, StoredTensor]] = {}
        self._primary: dict[str, str] = {}
        for tensor in tensors:
            self._tensors.setdefault(tensor.name, {})[tensor.slot] = tensor
            self._primary.update(dict.fromkeys((tensor.name, *tensor.aliases), tensor.name))

    def names(self) -> Iterable[str]:
        """Every stored name, aliases left out."""
        return list(self._tensors)

    def aliases(self, name: str) -> tuple[str, ...]:
        """All names of the tensor called `name`, its main one first; empty if unknown."""
        primary = self._primary.get(name)
        if primary is None:
            return ()
        return (primary, *next(iter(self._tensors[primary].values())).aliases)

    def frozen(self, name: str) -> bool:
        """Whether the parameter was frozen when it was saved."""
        slots = self._tensors[self._known(name)]
        return any(tensor.frozen for tensor in slots.values())

    def slots(self, name: str) -> frozenset[str]:
        """The slots stored for `name` or for one of its aliases; empty if unknown."""
        return frozenset(self._tensors.get(self._primary.get(name, ""), ()))

    def shape(self, name: str, slot: str) -> tuple[int, ...]:
        """The global shape stored for `name`; raises `CheckpointError` if there is none."""
        return self._stored(name, slot).shape

    def dtype(self, name: str, slot: str) -> torch.dtype:
        """The dtype that was stored."""
        return dtype_of(self._stored(name, slot).dtype)

    def read(self, name: str, slot: str, start: int, out: Tensor) -> None:
        """Fill 1-d contiguous `out` from element `start`, converting to `out.dtype`."""
        tensor = self._stored(name, slot)
        total, stop = numel_of(tensor.shape), start + out.numel()
        if out.dim() != 1 or not out.is_contiguous():
            raise StateError(f"reading {name!r} ({slot}) needs a 1-d contiguous tensor to fill")
        if start < 0 or stop > total:
            raise CheckpointError(
                f"{name!r} ({slot}) has {total} elements; {start} to {stop - 1} were asked for"
            )
        starts = [piece.start for piece in tensor.pieces]
        numels = [piece.numel for piece in tensor.pieces]
        dtype = dtype_of(tensor.dtype)
        for part in overlaps(starts, numels, start, out.numel()):
            piece = tensor.pieces[part.index]
            offset = piece.offset + part.piece_offset * dtype.itemsize
            target = out.detach()[part.range_offset : part.range_offset + part.numel]
            self._read_run(piece.file, offset, dtype, target)

    def whole(self, name: str, slot: str) -> Tensor:
        """The whole tensor, in its stored dtype and shape, in host memory."""
        out = torch.empty(numel_of(self.shape(name, slot)), dtype=self.dtype(name, slot))
        self.read(name, slot, 0, out)
        return out.view(self.shape(name, slot))

    def _read_run(self, file: str, offset: int, dtype: torch.dtype, target: Tensor) -> None:
        """Fill `target` with consecutive stored elements, through a buffer where it must."""
        if target.device.type == "cpu" and target.dtype == dtype:
            self._files.read(file, offset, bytes_of(target).numpy().data)
            return
        step = max(1, CHUNK // dtype.itemsize)
        buffer = torch.empty(min(step, target.numel()), dtype=dtype)
        for run in torch.split(target, step):
            filled = buffer[: run.numel()]
            self._files.read(file, offset, bytes_of(filled).numpy().data)
            run.copy_(filled)
            offset += run.numel() * dtype.itemsize

    def _known(self, name: str) -> str:
        primary = self._primary.get(name)
        if primary is None:
            raise CheckpointError(f"{self._files.folder} holds no tensor {name!r}")
        return primary

    def _stored(self, name: str, slot: str) -> StoredTensor:
        slots = self._tensors[self._known(name)]
        if slot not in slots:
            raise CheckpointError(
                f"{self._files.folder} holds no {slot!r} of {name!r}, only {sorted(slots)}"
            )
        return slots[slot]
