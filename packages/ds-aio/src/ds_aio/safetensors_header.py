"""The header of the safetensors format: pure text and arithmetic."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ds_aio.errors import AioError

# Data begins on a page, so that a file can be read straight into aligned memory.
DATA_ALIGNMENT = 4096
# The format's own limit.
LONGEST_HEADER = 100_000_000

_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "C64": torch.complex64,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class FormatError(AioError, ValueError):
    """The file is not in safetensors format, or the tensors cannot be stored in it."""


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies: `start` counts bytes from the beginning of the file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    nbytes: int


@dataclass(frozen=True)
class Layout:
    """A whole file: the encoded header, the tensors by position, and the length."""

    header: bytes
    entries: tuple[Entry, ...]
    metadata: dict[str, str]
    nbytes: int


def plan_layout(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Layout:
    """Places tensors one after the other, wide dtypes first so that all stay aligned."""
    _check_texts(tensors, metadata)
    _check_tensors(tensors)
    described: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    order = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    position = 0
    for name, tensor in order:
        if tensor.dtype not in _NAMES or name == "__metadata__":
            raise FormatError(f"tensor {name!r}: {tensor.dtype} cannot be stored under this name")
        end = position + tensor.numel() * tensor.element_size()
        described[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % DATA_ALIGNMENT)
    if len(text) > LONGEST_HEADER:
        raise FormatError(
            f"the header of {len(tensors)} tensors would exceed {LONGEST_HEADER} bytes"
        )
    header = len(text).to_bytes(8, "little") + text
    return Layout(header, _entries(described, len(header)), dict(metadata), len(header) + position)


def _check_tensors(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise FormatError(
                f"tensor {name!r} is a {type(tensor).__name__}: only tensors are stored, under "
                "names of one level"
            )
        if tensor.layout is not torch.strided or tensor.is_meta:
            kind = "on the meta device" if tensor.is_meta else f"of layout {tensor.layout}"
            raise FormatError(
                f"tensor {name!r} is {kind}: its elements cannot be stored as they are"
            )


def _check_texts(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    for text in (*tensors, *metadata, *metadata.values()):
        if not isinstance(text, str):
            raise FormatError(f"{text!r}: names and metadata are text, not {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise FormatError(f"{text!r} is no text that UTF-8 can say") from None


def parse_header(text: bytes, file_bytes: int) -> Layout:
    """Reads a header (without its 8 length bytes) and checks it against the file's length."""
    try:
        described = json.loads(text)
        metadata = dict(described.pop("__metadata__", None) or {})
        entries = _entries(described, 8 + len(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"the safetensors header cannot be understood: {error!r}") from error
    position = 8 + len(text)
    for entry in entries:
        if entry.start != position or entry.nbytes != math.prod(entry.shape) * entry.dtype.itemsize:
            raise FormatError(f"tensor {entry.name!r}: its place does not fit its shape and dtype")
        position += entry.nbytes
    if position != file_bytes:
        raise FormatError(f"the header describes {position} bytes, the file has {file_bytes}")
    return Layout(text, entries, metadata, position)


def _entries(described: Mapping[str, Any], start: int) -> tuple[Entry, ...]:
    entries = []
    for name, facts in described.items():
        if name == "__metadata__":
            continue
        first, last = facts["data_offsets"]
        shape = tuple(_count(size) for size in facts["shape"])
        first, last = _count(first), _count(last)
        entries.append(Entry(name, _DTYPES[facts["dtype"]], shape, start + first, last - first))
    return tuple(sorted(entries, key=lambda entry: (entry.start, entry.nbytes)))


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{value!r} is no size")
    return value
