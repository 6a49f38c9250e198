"""What one rank writes: its pieces of the tensors, documents, and an index of both."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor
from zlib_ng.zlib_ng import crc32

from ds_core.checkpoint.directory import write_durably
from ds_core.checkpoint.documents import Encoder, to_bytes
from ds_core.checkpoint.layout import numel_of
from ds_core.checkpoint.manifest import (
    StoredFile,
    StoredPiece,
    StoredTensor,
    dtype_name,
    files_from_json,
    files_to_json,
    tensors_from_json,
    tensors_to_json,
)
from ds_core.checkpoint.tensor_file import (
    HEADER_ROOM,
    WORKERS,
    TensorFile,
    entry_room,
    host_chunks,
    read_header,
)
from ds_core.contracts.shard import BUFFER, WEIGHT, TensorShard
from ds_core.errors import CheckpointError

TensorWriter = Callable[[Path, Mapping[str, Tensor]], object]
"""Writes one safetensors file and forces it to the disk."""

Progress = Callable[[int], object]
"""Told of every few bytes written, as `tqdm.update` is."""

STREAM_ROOM = 256 << 10
"""Header bytes of the first file for shards that come one by one; each further has 4 x more."""


def file_kind(slot: str) -> str:
    """`weights` for what an export reads, `states` for what only the optimizer needs."""
    return "weights" if slot in (WEIGHT, BUFFER) else "states"


def is_whole(shard: TensorShard) -> bool:
    return shard.piece.numel() == numel_of(shard.global_shape)


def piece_key(shard: TensorShard) -> str:
    """Name of a piece in its file: that of the parameter where the piece is all of it."""
    name = shard.name if file_kind(shard.slot) == "weights" else f"{shard.name}/{shard.slot}"
    return name if is_whole(shard) else f"{name}@{shard.start}"


def piece_shape(shard: TensorShard) -> tuple[int, ...]:
    return shard.global_shape if is_whole(shard) else (shard.piece.numel(),)


class _Sink(Protocol):
    def add(self, shard: TensorShard) -> None: ...

    def finish(self) -> tuple[list[StoredFile], list[tuple[tuple[str, str], StoredPiece]]]: ...


def write_pieces(
    folder: Path,
    rank: int,
    shards: Iterable[TensorShard],
    *,
    tensor_writer: TensorWriter | None = None,
    progress: Progress | None = None,
) -> tuple[list[StoredFile], list[StoredTensor]]:
    """Write this rank's tensor files; returns them and what is in them.

    Holds one piece at a time, unless `tensor_writer` is given: then all pieces must stay as they
    are until it has returned. Shards in a list go to one file a kind; those that come one by one
    may need several, as the header of a file is sized before its tensors are known.
    """
    table: dict[tuple[str, str], StoredTensor] = {}
    pieces: dict[tuple[str, str], list[StoredPiece]] = {}
    with _open_sink(folder, rank, shards, tensor_writer, progress) as sink:
        for shard in shards:
            key, facts = (shard.name, shard.slot), _describe(shard)
            if table.setdefault(key, facts) != facts:
                raise CheckpointError(
                    f"{shard.name!r} ({shard.slot}): two pieces describe it differently"
                )
            first = key not in pieces
            pieces.setdefault(key, [])
            if shard.piece.numel() or (first and is_whole(shard)):
                sink.add(shard)
        files, stored = sink.finish()
    for key, piece in stored:
        pieces[key].append(piece)
    return files, [replace(table[key], pieces=tuple(pieces[key])) for key in table]


@contextmanager
def _open_sink(
    folder: Path,
    rank: int,
    shards: Iterable[TensorShard],
    tensor_writer: TensorWriter | None,
    progress: Progress | None,
) -> Iterator[_Sink]:
    if tensor_writer is not None:
        yield _WholeFiles(folder, rank, tensor_writer, progress)
        return
    with ThreadPoolExecutor(WORKERS, "checkpoint") as workers, ExitStack() as stack:
        rooms: dict[str, int] = {}
        if isinstance(shards, Sequence):
            for shard in shards:
                kind = file_kind(shard.slot)
                needed = entry_room(piece_key(shard), piece_shape(shard))
                rooms[kind] = rooms.get(kind, HEADER_ROOM) + needed

        def open_file(kind: str, part: int, least: int) -> TensorFile:
            name = f"{kind}.rank{rank:05d}" + (f".part{part}" if part else "") + ".safetensors"
            room = max(least, rooms.get(kind, STREAM_ROOM << 2 * part))
            file = TensorFile(folder / name, room=room, workers=workers, progress=progress)
            return stack.enter_context(file)

        yield _StreamedFiles(open_file)


class _StreamedFiles:
    """Writes pieces as they come."""

    def __init__(self, open_file: Callable[[str, int, int], TensorFile]) -> None:
        self._open_file = open_file
        self._open: dict[str, TensorFile] = {}
        self._parts: dict[str, int] = {}
        self._done: list[StoredFile] = []
        self._stored: list[tuple[tuple[str, str], StoredPiece]] = []

    def add(self, shard: TensorShard) -> None:
        kind, key, shape = file_kind(shard.slot), piece_key(shard), piece_shape(shard)
        file = self._open.get(kind)
        if file is not None and not file.fits(key, shape):
            self._done.append(file.close())
            file = None
        if file is None:
            part = self._parts.get(kind, 0)
            self._parts[kind] = part + 1
            file = self._open_file(kind, part, HEADER_ROOM + entry_room(key, shape))
            self._open[kind] = file
        offset, crc = file.add(key, shard.piece, shape)
        piece = StoredPiece(file.path.name, offset, shard.start, shard.piece.numel(), crc)
        self._stored.append(((shard.name, shard.slot), piece))

    def finish(self) -> tuple[list[StoredFile], list[tuple[tuple[str, str], StoredPiece]]]:
        self._done += [file.close() for file in self._open.values()]
        return self._done, self._stored


class _WholeFiles:
    """Collects pieces, and lets somebody else write each file in one go."""

    def __init__(
        self, folder: Path, rank: int, tensor_writer: TensorWriter, progress: Progress | None
    ) -> None:
        self._folder, self._rank = folder, rank
        self._write, self._progress = tensor_writer, progress
        self._shards: dict[str, dict[str, TensorShard]] = {}

    def add(self, shard: TensorShard) -> None:
        key, wanted = piece_key(shard), self._shards.setdefault(file_kind(shard.slot), {})
        if key in wanted:
            raise CheckpointError(f"two pieces are called {key!r}")
        wanted[key] = shard

    def finish(self) -> tuple[list[StoredFile], list[tuple[tuple[str, str], StoredPiece]]]:
        files, stored = [], []
        for kind, shards in self._shards.items():
            path = self._folder / f"{kind}.rank{self._rank:05d}.safetensors"
            self._write(path, {k: s.piece.view(piece_shape(s)) for k, s in shards.items()})
            header, entries = read_header(path)
            files.append(describe_file(path, checked=header))
            for key, shard in shards.items():
                offset, crc = header + entries[key]["data_offsets"][0], 0
                for chunk in host_chunks(shard.piece):
                    crc = crc32(chunk, crc)
                    if self._progress is not None:
                        self._progress(len(chunk))
                piece = StoredPiece(path.name, offset, shard.start, shard.piece.numel(), crc)
                stored.append(((shard.name, shard.slot), piece))
        return files, stored


def _describe(shard: TensorShard) -> StoredTensor:
    piece, total = shard.piece, numel_of(shard.global_shape)
    if piece.dim() != 1 or not piece.is_contiguous():
        raise CheckpointError(f"{shard.name!r} ({shard.slot}): its piece is not 1-d contiguous")
    if shard.start < 0 or shard.start + piece.numel() > total:
        raise CheckpointError(
            f"{shard.name!r} ({shard.slot}): elements {shard.start} to "
            f"{shard.start + piece.numel() - 1} are not all among its {total}"
        )
    return StoredTensor(
        name=shard.name,
        slot=shard.slot,
        shape=tuple(shard.global_shape),
        dtype=dtype_name(piece.dtype),
        aliases=tuple(shard.aliases),
        frozen=shard.frozen,
        pieces=(),
    )


def write_document(folder: Path, stem: str, encoder: Encoder, value: Any) -> list[StoredFile]:
    """Write an encoded value as `stem.json`, its tensors beside it."""
    path = folder / f"{stem}.json"
    write_durably(path, to_bytes(value))
    files = [describe_file(path)]
    if encoder.tensors:
        beside = folder / f"{stem}.safetensors"
        room = HEADER_ROOM + sum(entry_room(k, tuple(t.shape)) for k, t in encoder.tensors.items())
        with (
            ThreadPoolExecutor(WORKERS) as workers,
            TensorFile(beside, room=room, workers=workers) as file,
        ):
            for key, tensor in encoder.tensors.items():
                file.add(key, tensor, tuple(tensor.shape))
            file.close()
        files.append(describe_file(beside))
    return files


def describe_file(path: Path, *, checked: int | None = None) -> StoredFile:
    """Size and checksum (of the first `checked` bytes, or all) of a file."""
    nbytes = path.stat().st_size
    left = nbytes if checked is None else checked
    total, crc = left, 0
    with open(path, "rb") as file:
        while left:
            block = file.read(min(left, 1 << 20))
            crc = crc32(block, crc)
            left -= len(block)
    return StoredFile(path.name, nbytes, total, crc)


def index_path(folder: Path, rank: int) -> Path:
    return folder / f"index.rank{rank:05d}.json"


def write_index(
    folder: Path, rank: int, files: Iterable[StoredFile], tensors: Iterable[StoredTensor]
) -> None:
    """Say what this rank wrote; the index appears in one step, after everything in it."""
    body = {"files": files_to_json(files), "tensors": tensors_to_json(tensors)}
    path = index_path(folder, rank)
    aside = path.with_suffix(".part")
    write_durably(aside, json.dumps(body).encode())
    aside.replace(path)


def read_index(folder: Path, rank: int) -> tuple[list[StoredFile], list[StoredTensor]]:
    body = json.loads(index_path(folder, rank).read_bytes())
    return list(files_from_json(body["files"])), list(tensors_from_json(body["tensors"]))
