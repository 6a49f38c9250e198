"""Proves that the files of a checkpoint are those that were written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from zlib_ng.zlib_ng import crc32

from ds_core.checkpoint.manifest import Manifest, dtype_of
from ds_core.checkpoint.reader import OpenFiles
from ds_core.errors import CheckpointError

_BLOCK = 4 << 20
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Bytes whose checksum is known."""

    file: str
    offset: int
    nbytes: int
    crc32: int
    what: str


def verify_sizes(folder: Path, manifest: Manifest) -> None:
    """Raise `CheckpointError` naming every file that is missing or has another size."""
    faults = []
    for file in manifest.files:
        try:
            nbytes = os.stat(folder / file.name).st_size
        except FileNotFoundError:
            faults.append(f"{file.name} is missing")
            continue
        if nbytes != file.nbytes:
            faults.append(f"{file.name} has {nbytes} bytes instead of {file.nbytes}")
    _raise(folder, faults)


def verify_content(
    folder: Path, manifest: Manifest, *, part: int = 0, parts: int = 1, threads: int = 4
) -> None:
    """Raise `CheckpointError` naming what differs in every `parts`-th stretch from `part`."""
    stretches = [s for i, s in enumerate(_stretches(manifest)) if i % parts == part]
    stretches.sort(key=lambda s: (s.file, s.offset))
    files = OpenFiles(folder)
    workers = max(1, min(threads, os.cpu_count() or 1, len(stretches)))
    try:
        with ThreadPoolExecutor(workers, "verify") as pool:
            lots = [stretches[i::workers] for i in range(workers)]
            faults = [
                fault for found in pool.map(lambda lot: _check(files, lot), lots) for fault in found
            ]
    finally:
        files.close()
    _raise(folder, sorted(faults))


def _stretches(manifest: Manifest) -> Iterator[_Stretch]:
    for file in manifest.files:
        what = "header" if file.checked < file.nbytes else "content"
        yield _Stretch(file.name, 0, file.checked, file.crc32, what)
    for tensor in manifest.tensors:
        width = dtype_of(tensor.dtype).itemsize
        for piece in tensor.pieces:
            if piece.numel:
                what = f"{tensor.name!r} ({tensor.slot})"
                nbytes = piece.numel * width
                yield _Stretch(piece.file, piece.offset, nbytes, piece.crc32, what)


def _check(files: OpenFiles, stretches: list[_Stretch]) -> list[str]:
    faults = []
    buffer = memoryview(bytearray(_BLOCK))
    for stretch in stretches:
        crc = 0
        for done in range(0, stretch.nbytes, _BLOCK):
            block = buffer[: min(_BLOCK, stretch.nbytes - done)]
            files.read(stretch.file, stretch.offset + done, block)
            crc = crc32(block, crc)
        if crc != stretch.crc32:
            last = stretch.offset + stretch.nbytes - 1
            faults.append(
                f"{stretch.file}: {stretch.what}, bytes {stretch.offset} to {last}, "
                "fails its checksum"
            )
    return faults


def _raise(folder: Path, faults: list[str]) -> None:
    if faults:
        shown = "; ".join(faults[:_SHOWN])
        more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise CheckpointError(f"checkpoint {folder} is damaged: {shown}{more}")
