"""The table of contents of a checkpoint, merged from what each rank wrote."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from zlib_ng.zlib_ng import crc32

from ds_core.checkpoint.layout import cover_fault, numel_of
from ds_core.errors import CheckpointError, RankMismatchError

FORMAT = "ds-core checkpoint"
FORMAT_VERSION = 1
MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of the checkpoint.

    Attributes:
        nbytes: its size.
        checked: `crc32` is that of the first so many bytes: all of a document, the header of a
            tensor file (its data is checked piece by piece).
    """

    name: str
    nbytes: int
    checked: int
    crc32: int


@dataclass(frozen=True, slots=True)
class StoredPiece:
    """`numel` elements from `start`, at byte `offset` of `file`."""

    file: str
    offset: int
    start: int
    numel: int
    crc32: int


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One slot of one parameter, and where its pieces lie (sorted by `start`)."""

    name: str
    slot: str
    shape: tuple[int, ...]
    dtype: str
    aliases: tuple[str, ...]
    frozen: bool
    pieces: tuple[StoredPiece, ...]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that is in a checkpoint, by name.

    Attributes:
        versions: of the software that wrote it.
        created: seconds since 1970.
    """

    tag: str
    world_size: int
    files: tuple[StoredFile, ...]
    tensors: tuple[StoredTensor, ...]
    versions: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise CheckpointError(f"this PyTorch ({torch.__version__}) has no dtype {name!r}")
    return dtype


def merge_tensors(per_rank: Iterable[Iterable[StoredTensor]]) -> tuple[StoredTensor, ...]:
    """One table from the tables of all ranks, in the order of first appearance.

    Raises `RankMismatchError` if two ranks describe the same tensor differently and
    `CheckpointError` unless each element of each tensor lies in exactly one piece.
    """
    merged: dict[tuple[str, str], tuple[int, StoredTensor, list[StoredPiece]]] = {}
    owners: dict[str, tuple[int, str]] = {}
    for rank, tensors in enumerate(per_rank):
        for tensor in tensors:
            _check_names(tensor, rank, owners)
            key = (tensor.name, tensor.slot)
            first = merged.setdefault(key, (rank, tensor, []))
            _check_same(first[1], first[0], tensor, rank)
            first[2].extend(tensor.pieces)
    result = []
    for _, tensor, pieces in merged.values():
        pieces.sort(key=lambda piece: (piece.start, piece.numel))
        _check_cover(tensor, pieces)
        result.append(replace(tensor, pieces=tuple(pieces)))
    return tuple(result)


def _check_names(tensor: StoredTensor, rank: int, owners: dict[str, tuple[int, str]]) -> None:
    for name in (tensor.name, *tensor.aliases):
        other, owner = owners.setdefault(name, (rank, tensor.name))
        if owner != tensor.name:
            raise RankMismatchError(
                f"{name!r} belongs to parameter {owner!r} on rank {other} and to {tensor.name!r} "
                f"on rank {rank}: tied names must be listed alike on all ranks"
            )


def _check_same(a: StoredTensor, rank_a: int, b: StoredTensor, rank_b: int) -> None:
    for what in ("shape", "dtype", "aliases", "frozen"):
        mine, other = getattr(a, what), getattr(b, what)
        if mine != other:
            raise RankMismatchError(
                f"{a.name!r} ({a.slot}): {what} is {mine} on rank {rank_a} "
                f"and {other} on rank {rank_b}"
            )


def _check_cover(tensor: StoredTensor, pieces: list[StoredPiece]) -> None:
    spans = [(piece.start, piece.numel) for piece in pieces]
    fault = cover_fault(spans, numel_of(tensor.shape))
    if fault is not None:
        files = ", ".join(sorted({piece.file for piece in pieces})) or "no file"
        raise CheckpointError(f"{tensor.name!r} ({tensor.slot}): {fault} (pieces in {files})")


def check_manifest(manifest: Manifest) -> None:
    """Raise `CheckpointError` unless the table is consistent in itself."""
    known = {file.name: file.nbytes for file in manifest.files}
    for tensor in manifest.tensors:
        _check_cover(tensor, list(tensor.pieces))
        width = dtype_of(tensor.dtype).itemsize
        for piece in tensor.pieces:
            if piece.numel and piece.offset + piece.numel * width > known.get(piece.file, -1):
                raise CheckpointError(
                    f"{tensor.name!r} ({tensor.slot}) needs {piece.numel} elements at byte "
                    f"{piece.offset} of {piece.file}, which has {known.get(piece.file, 'none')}"
                )


def tensors_to_json(tensors: Iterable[StoredTensor]) -> list[dict[str, Any]]:
    """Plain JSON values; a piece is a list in the order of its fields."""
    return [
        {
            "name": tensor.name,
            "slot": tensor.slot,
            "shape": list(tensor.shape),
            "dtype": tensor.dtype,
            "aliases": list(tensor.aliases),
            "frozen": tensor.frozen,
            "pieces": [[p.file, p.offset, p.start, p.numel, p.crc32] for p in tensor.pieces],
        }
        for tensor in tensors
    ]


def tensors_from_json(rows: Iterable[Mapping[str, Any]]) -> tuple[StoredTensor, ...]:
    return tuple(
        StoredTensor(
            name=row["name"],
            slot=row["slot"],
            shape=tuple(row["shape"]),
            dtype=row["dtype"],
            aliases=tuple(row["aliases"]),
            frozen=row["frozen"],
            pieces=tuple(StoredPiece(*piece) for piece in row["pieces"]),
        )
        for row in rows
    )


def files_to_json(files: Iterable[StoredFile]) -> list[dict[str, Any]]:
    return [asdict(file) for file in files]


def files_from_json(rows: Iterable[Mapping[str, Any]]) -> tuple[StoredFile, ...]:
    return tuple(StoredFile(**row) for row in rows)


def dump_manifest(manifest: Manifest) -> bytes:
    """The bytes of `manifest.json`; the last key is a checksum of all the others."""
    body: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "tag": manifest.tag,
        "created": manifest.created,
        "world_size": manifest.world_size,
        "versions": dict(manifest.versions),
        "files": files_to_json(manifest.files),
        "tensors": tensors_to_json(manifest.tensors),
    }
    body["crc32"] = _body_crc(body)
    return json.dumps(body).encode()


def read_manifest(folder: Path) -> Manifest:
    """Read and check `manifest.json`; raises `CheckpointError` that names the file."""
    path = folder / MANIFEST
    try:
        body = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: {folder} is no complete checkpoint") from None
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {error}") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not the manifest of a {FORMAT}, or is damaged")
    if body.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format version {body.get('format_version')}; this ds-core reads "
            f"version {FORMAT_VERSION}: install a newer one (or the file is damaged)"
        )
    if body.pop("crc32", None) != _body_crc(body):
        raise CheckpointError(f"{path} is damaged: its checksum does not fit")
    return Manifest(
        tag=body["tag"],
        world_size=body["world_size"],
        files=files_from_json(body["files"]),
        tensors=tensors_from_json(body["tensors"]),
        versions=body["versions"],
        created=body["created"],
    )


def _body_crc(body: Mapping[str, Any]) -> int:
    return crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
