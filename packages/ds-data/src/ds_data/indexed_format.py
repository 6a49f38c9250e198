"""The layout of a memory-mapped `.bin/.idx` pair, as Megatron and DeepSpeed write it."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt

from ds_data.errors import FormatError, RuleError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
_CHECKED_AT_ONCE = 1 << 20
_HEADER = struct.Struct("<QBQQ")  # version, dtype code, number of items, length of doc_idx

# Codes 1-5 mean the same everywhere; from 6 on the two families differ.
Dialect = Literal["deepspeed", "megatron"]
_SHARED = {1: "u1", 2: "i1", 3: "i2", 4: "i4", 5: "i8"}
_CODES: dict[str, dict[int, np.dtype[Any]]] = {
    "deepspeed": {
        code: np.dtype(name) for code, name in (_SHARED | {6: "u2", 7: "u4", 8: "u8"}).items()
    },
    "megatron": {
        code: np.dtype(name) for code, name in (_SHARED | {6: "f8", 7: "f4", 8: "u2"}).items()
    },
}


@dataclass(frozen=True, eq=False)
class Index:
    """What an `.idx` file holds.

    Attributes:
        sizes: `(items,)` int32, elements of each item.
        pointers: `(items,)` int64, byte offset of each item in the `.bin` file.
        doc_idx: int64, item numbers at which documents begin, and the end.
    """

    dtype: np.dtype[Any]
    sizes: npt.NDArray[np.int32]
    pointers: npt.NDArray[np.int64]
    doc_idx: npt.NDArray[np.int64]


def bin_path(prefix: str | Path) -> Path:
    return Path(f"{prefix}.bin")


def idx_path(prefix: str | Path) -> Path:
    return Path(f"{prefix}.idx")


def dtype_code(dtype: npt.DTypeLike, dialect: Dialect = "deepspeed") -> int:
    """The number that stands for `dtype` in a header.

    Raises:
        RuleError: the format has no such type; the message lists those it has.
    """
    wanted = np.dtype(dtype)
    for code, known in _CODES[dialect].items():
        if known == wanted:
            return code
    names = ", ".join(known.name for known in _CODES[dialect].values())
    raise RuleError(f"{wanted.name} cannot be stored in the {dialect} dialect: it has {names}")


def code_dtype(code: int, dialect: Dialect = "deepspeed") -> np.dtype[Any]:
    """The type that a code in a header stands for."""
    if code not in _CODES[dialect]:
        raise FormatError(f"dtype code {code}: known are 1 to 8")
    return _CODES[dialect][code]


def best_dtype(vocab_size: int | None) -> np.dtype[Any]:
    """The type Megatron's tools pick for token ids: uint16 below 65,500 words, else int32."""
    small = vocab_size is not None and vocab_size < 65500
    return np.dtype(np.uint16 if small else np.int32)


def smallest_unsigned(largest: int) -> np.dtype[Any]:
    """The smallest unsigned type that holds 0..`largest`."""
    for name in ("u1", "u2", "u4"):
        if largest <= np.iinfo(name).max:
            return np.dtype(name)
    return np.dtype("u8")


def write_index(
    file: BinaryIO,
    dtype: npt.DTypeLike,
    sizes: npt.NDArray[np.int32],
    doc_idx: npt.NDArray[np.int64],
    dialect: Dialect = "deepspeed",
) -> None:
    """Write the header and tables of items that lie end to end in the `.bin` file."""
    pointers = np.zeros(len(sizes), dtype=np.int64)
    np.cumsum(sizes[:-1], out=pointers[1:], dtype=np.int64)
    pointers *= np.dtype(dtype).itemsize
    file.write(MAGIC + _HEADER.pack(VERSION, dtype_code(dtype, dialect), len(sizes), len(doc_idx)))
    for table in (sizes.astype("<i4"), pointers.astype("<i8"), doc_idx.astype("<i8")):
        file.write(table.view(np.uint8).data)


def read_index(prefix: str | Path, dialect: Dialect | None = None) -> Index:
    """Map the tables of `prefix.idx`.

    Without `dialect`, codes that mean different types are told apart by the bytes an item takes;
    where that does not help (uint32 or float32) the peer's meaning, uint32, is taken.
    """
    path = idx_path(prefix)
    begin = len(MAGIC) + _HEADER.size
    size = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(begin)
    if not head.startswith(MAGIC) or len(head) < begin:
        raise FormatError(f"{path} is no memory-mapped index: it begins with {head[:9]!r}")
    version, code, items, documents = _HEADER.unpack(head[len(MAGIC) :])
    if version != VERSION:
        raise FormatError(f"{path} has version {version}, known is {VERSION}")
    expected = begin + 12 * items + 8 * documents
    if size != expected:
        raise FormatError(f"{path} has {size} bytes, its header promises {expected}: it is damaged")
    raw = np.memmap(path, mode="r", dtype=np.uint8)
    sizes = np.frombuffer(raw, "<i4", items, begin)
    pointers = np.frombuffer(raw, "<i8", items, begin + 4 * items)
    doc_idx = np.frombuffer(raw, "<i8", documents, begin + 12 * items)
    _check_documents(path, doc_idx, items)
    width = _item_width(sizes, pointers, bin_path(prefix))
    dtype = _dtype_of(path, code, width, dialect)
    _check_places(path, sizes, pointers, dtype.itemsize)
    return Index(dtype, sizes, pointers, doc_idx)


def _check_documents(path: Path, doc_idx: npt.NDArray[np.int64], items: int) -> None:
    if not len(doc_idx):
        return
    if doc_idx[0] != 0 or doc_idx[-1] > items or bool((np.diff(doc_idx) < 0).any()):
        raise FormatError(f"{path}: documents do not rise from 0 to {items}: it is damaged")


def _check_places(
    path: Path, sizes: npt.NDArray[np.int32], pointers: npt.NDArray[np.int64], width: int
) -> None:
    """Items lie end to end from the first byte on, as every writer lays them."""
    expected = 0
    for begin in range(0, len(sizes), _CHECKED_AT_ONCE):
        part = slice(begin, begin + _CHECKED_AT_ONCE)
        ends = expected + np.cumsum(sizes[part], dtype=np.int64) * width
        starts = np.append(expected, ends[:-1])
        wrong = np.flatnonzero((sizes[part] < 0) | (pointers[part] != starts))
        if len(wrong):
            at = begin + int(wrong[0])
            raise FormatError(
                f"{path}: item {at} has {sizes[at]} elements and begins at byte {pointers[at]}, "
                f"expected at {starts[at - begin]}: it is damaged"
            )
        expected = int(ends[-1])


def _item_width(
    sizes: npt.NDArray[np.int32], pointers: npt.NDArray[np.int64], data: Path
) -> int | None:
    """Bytes an element, from the first item that is not empty."""
    filled = np.flatnonzero(sizes[: 1 << 16])
    if not len(filled):
        return None
    at = int(filled[0])
    after = int(pointers[at + 1]) if at + 1 < len(pointers) else data.stat().st_size
    return (after - int(pointers[at])) // int(sizes[at])


def _dtype_of(path: Path, code: int, width: int | None, dialect: Dialect | None) -> np.dtype[Any]:
    dialects: tuple[Dialect, ...] = (dialect,) if dialect else ("deepspeed", "megatron")
    known = [_CODES[name][code] for name in dialects if code in _CODES[name]]
    if not known:
        raise FormatError(f"{path} has dtype code {code}: known are 1 to 8")
    for dtype in known:
        if width in (None, dtype.itemsize):
            return dtype
    raise FormatError(
        f"{path}: items take {width} bytes an element, dtype code {code} means {known[0].name}"
    )
