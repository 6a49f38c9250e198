"""Random access to variable-length items in a memory-mapped `.bin/.idx` pair."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from ds_data.errors import FormatError, RuleError
from ds_data.indexed_format import Dialect, bin_path, idx_path, read_index

Items = npt.NDArray[Any]


class MMapIndexedDataset:
    """Reads `path.bin` with the help of `path.idx`.

    `dataset[i]` is a read-only array that lies in the mapped file: no copy is made, and it stays
    valid after the data set is gone. Processes that read the same file share its memory; an
    instance is small to pickle.

    Args:
        path: the common part of both names.
        skip_warmup: accepted for old callers; pages are read when they are used.
        dialect: whose meaning dtype codes have; found out if None.
    """

    def __init__(
        self, path: str | Path, skip_warmup: bool = True, *, dialect: Dialect | None = None
    ) -> None:
        self._path = str(path)
        self._dialect = dialect
        self._open()

    def _open(self) -> None:
        index = read_index(self._path, self._dialect)
        self._dtype, self._sizes, self._doc_idx = index.dtype, index.sizes, index.doc_idx
        path = bin_path(self._path)
        size = path.stat().st_size
        width = self._dtype.itemsize
        if len(index.sizes):
            end = int(index.pointers[-1]) + int(index.sizes[-1]) * width
            if end > size:
                raise FormatError(f"{path} has {size} bytes, its index reaches {end}: it is cut")
        if size % width or bool((index.pointers % width).any()):
            raise FormatError(f"{path}: items do not lie at multiples of {width} bytes")
        flat = np.memmap(path, mode="r", dtype=np.uint8) if size else np.zeros(0, np.uint8)
        self._flat: Items = np.frombuffer(flat, dtype=self._dtype)
        self._starts = index.pointers // width

    def __len__(self) -> int:
        return len(self._sizes)

    @overload
    def __getitem__(self, index: int) -> Items: ...
    @overload
    def __getitem__(self, index: slice) -> list[Items]: ...
    def __getitem__(self, index: int | slice) -> Items | list[Items]:
        if isinstance(index, slice):
            return [self[item] for item in range(*index.indices(len(self)))]
        start = self._starts[index]
        return self._flat[start : start + self._sizes[index]]

    def __iter__(self) -> Iterator[Items]:
        return (self[index] for index in range(len(self)))

    def get(self, idx: int, offset: int = 0, length: int | None = None) -> Items:
        """Elements `offset` to `offset + length` of an item."""
        size = int(self._sizes[idx])
        length = size - offset if length is None else length
        if offset < 0 or length < 0 or offset + length > size:
            raise RuleError(f"item {idx} has {size} elements: no {offset} to {offset + length}")
        start = int(self._starts[idx]) + offset
        return self._flat[start : start + length]

    def flat(self) -> Items:
        """All elements of the file, in the order they were written."""
        return self._flat

    def size(self, index: int) -> int:
        return int(self._sizes[index])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    @property
    def sizes(self) -> npt.NDArray[np.int32]:
        return self._sizes

    @property
    def doc_idx(self) -> npt.NDArray[np.int64]:
        return self._doc_idx

    def get_doc_idx(self) -> npt.NDArray[np.int64]:
        return self._doc_idx

    def set_doc_idx(self, doc_idx_: npt.NDArray[np.int64]) -> None:
        """Replace the document borders of this instance; the file stays as it is."""
        self._doc_idx = doc_idx_

    @property
    def supports_prefetch(self) -> bool:
        return False

    @staticmethod
    def exists(path: str | Path) -> bool:
        return idx_path(path).exists() and bin_path(path).exists()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self._path, "dialect": self._dialect}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._path, self._dialect = state["path"], state["dialect"]
        self._open()
