"""The older `.bin/.idx` layout (`TNTIDX`), read from disk item by item."""

from __future__ import annotations

import io
import math
import os
import struct
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from ds_data.errors import FormatError, RuleError
from ds_data.indexed_format import bin_path, code_dtype, dtype_code, idx_path

MAGIC = b"TNTIDX\x00\x00"
_HEADER = struct.Struct("<QQQQQQ")  # version, dtype code, item width, items, sizes, documents


class IndexedDataset:
    """Reads items of any shape, each with one read; nothing is kept in memory."""

    def __init__(self, path: str | Path) -> None:
        self._path = str(path)
        self._data: BinaryIO | None = None
        with open(idx_path(path), "rb") as file:
            raw = file.read()
        if not raw.startswith(MAGIC):
            raise FormatError(f"{idx_path(path)} is no list index: it begins with {raw[:8]!r}")
        at = len(MAGIC) + _HEADER.size
        if len(raw) < at:
            raise FormatError(f"{idx_path(path)} is cut")
        version, code, width, items, sizes, documents = _HEADER.unpack_from(raw, len(MAGIC))
        self.dtype = code_dtype(code)
        if version != 1 or width != self.dtype.itemsize:
            raise FormatError(f"{idx_path(path)}: version {version}, {width} bytes an element")
        expected = at + 8 * (2 * (items + 1) + sizes + documents)
        if len(raw) != expected:
            raise FormatError(f"{idx_path(path)} has {len(raw)} bytes, not {expected}: is it cut?")
        numbers = np.frombuffer(raw, "<i8", offset=at)
        ends = np.cumsum([items + 1, items + 1, sizes, documents])
        self._dims, self._offsets, self._shapes, self.doc_idx = np.split(numbers, ends)[:4]
        self._check()

    def _check(self) -> None:
        bounds = {"items": self._dims, "offsets": self._offsets, "documents": self.doc_idx}
        for name, table in bounds.items():
            if len(table) and (table[0] != 0 or bool((np.diff(table) < 0).any())):
                raise FormatError(f"{idx_path(self._path)}: {name} do not rise from 0")
        if self._dims[-1] != len(self._shapes) or self._shapes.min(initial=0) < 0:
            raise FormatError(f"{idx_path(self._path)}: the shapes of items are damaged")
        size, needed = bin_path(self._path).stat().st_size, int(self._offsets[-1])
        if needed * self.dtype.itemsize > size:
            raise FormatError(f"{bin_path(self._path)} has {size} bytes: it is cut")

    def __len__(self) -> int:
        return len(self._dims) - 1

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[item] for item in range(*index.indices(len(self)))]
        self.check_index(index)
        data = self._file()
        begin, end = (int(self._offsets[index + side]) for side in (0, 1))
        data.seek(begin * self.dtype.itemsize)
        values = np.frombuffer(data.read((end - begin) * self.dtype.itemsize), self.dtype)
        shape = self._shapes[self._dims[index] : self._dims[index + 1]].tolist()
        if math.prod(shape) != len(values):
            raise FormatError(
                f"{self._path}: item {index} of shape {shape} has {len(values)} values"
            )
        return values.reshape(shape)

    def _file(self) -> BinaryIO:
        if self._data is None:
            self._data = open(bin_path(self._path), "rb")  # noqa: SIM115 (kept open)
        return self._data

    def check_index(self, index: int) -> None:
        if not 0 <= index < len(self):
            raise IndexError(f"item {index} of {len(self)}")

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        return self._shapes

    def size(self, index: int) -> int:
        """First dimension of an item."""
        return int(self._shapes[self._dims[index]])

    def num_tokens(self, index: int) -> int:
        return self.size(index)

    @staticmethod
    def exists(path: str | Path) -> bool:
        return idx_path(path).exists() and bin_path(path).exists()

    @property
    def supports_prefetch(self) -> bool:
        return False

    def close(self) -> None:
        if self._data is not None:
            self._data.close()
            self._data = None

    def __del__(self) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_data": None}


class IndexedCachedDataset(IndexedDataset):
    """Keeps the items that were asked for ahead of time."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._cache: dict[int, npt.NDArray[Any]] = {}

    @property
    def supports_prefetch(self) -> bool:
        return True

    def prefetch(self, indices: list[int]) -> None:
        """Read `indices` in file order; they replace what was kept before."""
        self._cache = {}
        for index in sorted(set(indices)):
            self._cache[index] = super().__getitem__(index)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, int) and index in self._cache:
            return self._cache[index]
        return super().__getitem__(index)


class IndexedDatasetBuilder:
    """Writes the older layout; the pair appears in `finalize`."""

    def __init__(self, out_file: str | Path, dtype: npt.DTypeLike = np.int32) -> None:
        dtype_code(dtype)
        self._dtype: np.dtype[Any] = np.dtype(dtype)
        self._path = Path(out_file)
        self._aside = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
        self._file: BinaryIO = open(self._aside, "wb")  # noqa: SIM115 (closed in finalize)
        self._shapes: list[tuple[int, ...]] = []
        self._doc_idx = [0]

    def add_item(self, tensor: torch.Tensor | npt.ArrayLike) -> None:
        array = np.asarray(tensor)
        stored = array.astype(self._dtype)
        if not np.array_equal(stored, array):
            raise RuleError(f"an item has values that do not fit in {self._dtype.name}")
        self._file.write(stored.tobytes())
        self._shapes.append(stored.shape)

    def end_document(self) -> None:
        self._doc_idx.append(len(self._shapes))

    def merge_file_(self, another_file: str | Path) -> None:
        other = IndexedDataset(another_file)
        if other.dtype != self._dtype:
            raise RuleError(f"{another_file} holds {other.dtype.name}, not {self._dtype.name}")
        first = len(self._shapes)
        for index in range(len(other)):
            self.add_item(other[index])
        self._doc_idx += [first + int(item) for item in other.doc_idx[1:]]

    def finalize(self, index_file: str | Path) -> None:
        self._file.close()
        dims = np.cumsum([0, *(len(shape) for shape in self._shapes)])
        offsets = np.cumsum([0, *(int(np.prod(shape)) for shape in self._shapes)])
        sizes = [size for shape in self._shapes for size in shape]
        head = (1, dtype_code(self._dtype), self._dtype.itemsize)
        counts = (len(self._shapes), len(sizes), len(self._doc_idx))
        tables = io.BytesIO()
        for table in (dims, offsets, sizes, self._doc_idx):
            tables.write(np.asarray(table, "<i8").tobytes())
        aside = Path(f"{index_file}.{os.getpid()}.part")
        aside.write_bytes(MAGIC + _HEADER.pack(*head, *counts) + tables.getvalue())
        os.replace(self._aside, self._path)
        os.replace(aside, index_file)

    def __enter__(self) -> IndexedDatasetBuilder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._file.close()
        if kind is None and self._aside.exists():
            self.finalize(self._path.with_suffix(".idx"))
        self._aside.unlink(missing_ok=True)


def starts_of(sizes: list[int]) -> list[int]:
    """Where documents begin if empty items end them."""
    return [0, *(at + 1 for at, size in enumerate(sizes) if size == 0)]


def is_list_index(path: str | Path) -> bool:
    """True if `path.idx` has the older layout."""
    with open(idx_path(path), "rb") as file:
        return file.read(len(MAGIC)) == MAGIC
