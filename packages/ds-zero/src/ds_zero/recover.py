#!/usr/bin/env python3
"""Turns a checkpoint of sharded weights into ordinary weight files.

This file stands alone: a copy of it lies beside each checkpoint, and needs nothing but Python for
safetensors output of fp32 weights (numpy for 16-bit ones, torch for `pytorch_model.bin`).

    python zero_to_fp32.py CHECKPOINT_DIR OUTPUT_DIR [--safe_serialization] [--tag TAG]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHUNK = 8 << 20
BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4}
BYTES |= {"int16": 2, "int8": 1, "uint8": 1, "bool": 1}
CODES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}
CODES |= {"int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8"}
CODES |= {"bool": "BOOL"}
WIDENED = ("float16", "bfloat16")


@dataclass(frozen=True)
class Weight:
    """One output tensor: where its bytes lie, in order."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    pieces: tuple[tuple[str, int, int], ...]  # file, byte offset, elements
    tied_to: str | None = None

    @property
    def numel(self) -> int:
        return sum(piece[2] for piece in self.pieces)

    @property
    def target(self) -> str:
        """Format in the output."""
        return "float32" if self.dtype in WIDENED else self.dtype

    @property
    def nbytes(self) -> int:
        return self.numel * BYTES[self.target]


class RecoveryError(RuntimeError):
    """A checkpoint that is missing or damaged."""


def folder_of(checkpoint_dir: str | os.PathLike[str], tag: str | None = None) -> Path:
    """The folder of a tag; the one that `latest` names if there is none."""
    root = Path(checkpoint_dir)
    if tag is None:
        if (root / "manifest.json").is_file():
            return root
        try:
            tag = (root / "latest").read_text().strip()
        except FileNotFoundError:
            raise RecoveryError(f"{root / 'latest'} is missing: pass --tag") from None
    if not (root / tag / "manifest.json").is_file():
        raise RecoveryError(f"{root / tag} is no complete checkpoint: it has no manifest.json")
    return root / tag


def weights_of(folder: Path, *, exclude_frozen: bool = False) -> list[Weight]:
    """Parameters and buffers of a checkpoint, each under every name it has."""
    body = json.loads((folder / "manifest.json").read_bytes())
    found: list[Weight] = []
    for row in body["tensors"]:
        if row["slot"] not in ("weight", "buffer") or (exclude_frozen and row["frozen"]):
            continue
        pieces = sorted(row["pieces"], key=lambda piece: (piece[2], piece[3]))
        _check_cover(row, pieces)
        places = tuple((file, offset, numel) for file, offset, _, numel, _ in pieces)
        for name in (row["name"], *row["aliases"]):
            tied = None if name == row["name"] else row["name"]
            found.append(Weight(name, tuple(row["shape"]), row["dtype"], places, tied))
    return found


def _check_cover(row: dict[str, Any], pieces: Sequence[Sequence[Any]]) -> None:
    total, reached = 1, 0
    for size in row["shape"]:
        total *= size
    for _, _, start, numel, _ in pieces:
        if start != reached and numel:
            raise RecoveryError(f"{row['name']}: elements from {reached} on are in no piece")
        reached += numel
    if reached != total:
        raise RecoveryError(f"{row['name']}: {reached} of {total} elements are stored")


def split(weights: Sequence[Weight], limit: int | None) -> list[list[Weight]]:
    """Weights by output file, in order, at most `limit` bytes each (one tensor at least)."""
    files: list[list[Weight]] = [[]]
    filled = 0
    for weight in weights:
        if files[-1] and limit is not None and filled + weight.nbytes > limit:
            files.append([])
            filled = 0
        files[-1].append(weight)
        filled += weight.nbytes
    return files


def content(folder: Path, weight: Weight) -> Iterator[bytes | memoryview]:
    """The output bytes of a weight, `CHUNK` at a time."""
    for name, offset, numel in weight.pieces:
        left = numel * BYTES[weight.dtype]
        if not left:
            continue
        with open(folder / name, "rb") as file:
            file.seek(offset)
            while left:
                data = file.read(min(CHUNK, left))
                if not data:
                    raise RecoveryError(f"{folder / name} ends within {weight.name}")
                left -= len(data)
                yield _widen(data, weight.dtype)


def _widen(data: bytes, dtype: str) -> bytes | memoryview:
    if dtype not in WIDENED:
        return data
    import numpy

    if dtype == "float16":
        return numpy.frombuffer(data, numpy.float16).astype(numpy.float32).data.cast("B")
    words = numpy.frombuffer(data, numpy.uint16).astype(numpy.uint32) << 16
    return words.data.cast("B")


def write_safetensors(folder: Path, weights: Sequence[Weight], path: Path) -> None:
    """Stream weights into one safetensors file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for weight in weights:
        header[weight.name] = {
            "dtype": CODES[weight.target],
            "shape": list(weight.shape),
            "data_offsets": [offset, offset + weight.nbytes],
        }
        offset += weight.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for weight in weights:
            for data in content(folder, weight):
                file.write(data)


def write_torch(folder: Path, weights: Sequence[Weight], path: Path) -> None:
    """Write weights with `torch.save`; tied ones share memory within the file."""
    import torch

    made: dict[str, Any] = {}
    for weight in weights:
        if weight.tied_to in made:
            made[weight.name] = made[weight.tied_to]
            continue
        tensor = torch.empty(weight.shape, dtype=getattr(torch, weight.target))
        flat, place = tensor.view(-1).view(torch.uint8) if weight.numel else tensor, 0
        for data in content(folder, weight):
            step = len(data)
            flat[place : place + step] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            place += step
        made[weight.name] = tensor
    torch.save(made, path)


def export(
    checkpoint_dir: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    *,
    max_shard_size: str | int | None = "5GB",
    safe_serialization: bool = False,
    tag: str | None = None,
    exclude_frozen: bool = False,
) -> list[Path]:
    """Write the weights of a checkpoint as ordinary files; returns them."""
    folder = folder_of(checkpoint_dir, tag)
    weights = weights_of(folder, exclude_frozen=exclude_frozen)
    files = split(weights, size_in_bytes(max_shard_size))
    write = write_safetensors if safe_serialization else write_torch
    output = Path(output_dir)
    output.mkdir(parents=True, exist_ok=True)
    return write_files(
        files, output, safe_serialization, lambda members, path: write(folder, members, path)
    )


def write_files(
    files: Sequence[Sequence[Weight]],
    output: Path,
    safe: bool,
    write: Callable[[Sequence[Weight], Path], object],
) -> list[Path]:
    """Write each group of weights, and an index if there are several; returns the files."""
    stem, end = ("model", "safetensors") if safe else ("pytorch_model", "bin")
    names = [f"{stem}.{end}"]
    if len(files) > 1:
        names = [f"{stem}-{i + 1:05d}-of-{len(files):05d}.{end}" for i in range(len(files))]
    weight_map: dict[str, str] = {}
    for name, members in zip(names, files):  # noqa: B905 (runs on any Python 3)
        write(members, output / name)
        weight_map.update({weight.name: name for weight in members})
    if len(files) > 1:
        total = sum(weight.nbytes for members in files for weight in members)
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        (output / f"{stem}.{end}.index.json").write_text(json.dumps(index, indent=2))
    return [output / name for name in names]


def size_in_bytes(size: str | int | None) -> int | None:
    """`5GB`, `200MB`, `1KiB`, a number of bytes, or None for no limit."""
    if size is None or isinstance(size, int):
        return size
    text = size.strip().upper()
    units = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    units |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
    for unit in sorted(units, key=len, reverse=True):
        if text.endswith(unit):
            return int(float(text[: -len(unit)]) * units[unit])
    return int(text.removesuffix("B"))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command's arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("checkpoint_dir", help="the folder that was saved to")
    parser.add_argument("output_dir", help="where the weight files go")
    parser.add_argument(
        "--max_shard_size", default="5GB", help="most bytes of a file (default: %(default)s)"
    )
    parser.add_argument("--safe_serialization", action="store_true", help="write safetensors")
    parser.add_argument("-t", "--tag", default=None, help="which checkpoint; default: the latest")
    parser.add_argument(
        "--exclude_frozen_parameters",
        action="store_true",
        help="leave out parameters that were not trained",
    )
    parser.add_argument("-d", "--debug", action="store_true", help="show the traceback of errors")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    options = parse(argv)
    try:
        written = export(
            options.checkpoint_dir,
            options.output_dir,
            max_shard_size=options.max_shard_size,
            safe_serialization=options.safe_serialization,
            tag=options.tag,
            exclude_frozen=options.exclude_frozen_parameters,
        )
    except (RecoveryError, OSError, ValueError) as error:
        if options.debug:
            raise
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("".join(f"{path}\n" for path in written))
    return 0


if __name__ == "__main__":
    sys.exit(main())
