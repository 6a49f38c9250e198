"""Write memory-mapped `.bin/.idx` pairs; a pair appears whole or not at all."""

from __future__ import annotations

import os
import shutil
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from ds_data.errors import FormatError, RuleError
from ds_data.indexed_format import Dialect, bin_path, dtype_code, read_index, write_index

_LONGEST = int(np.iinfo(np.int32).max)


class MMapIndexedDatasetBuilder:
    """Appends items to `out_file`, which gets its name in `finalize`.

    As a context manager it finalizes on success, next to `out_file`, and leaves nothing behind
    after an error.

    Args:
        out_file: name of the `.bin` file.
        dtype: of the elements; a value that does not fit is refused.
        dialect: whose dtype codes are written; they differ for uint16 and larger unsigned types,
            and only Megatron has floats.
    """

    def __init__(
        self,
        out_file: str | Path,
        dtype: npt.DTypeLike = np.int64,
        *,
        dialect: Dialect = "deepspeed",
    ) -> None:
        dtype_code(dtype, dialect)
        self._dtype: np.dtype[Any] = np.dtype(dtype)
        self._dialect: Dialect = dialect
        self._path = Path(out_file)
        self._aside = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file: BinaryIO | None = open(  # noqa: SIM115 (closed by the owner)
            self._aside, "wb", buffering=1 << 20
        )
        self._sizes = array("i")
        self._doc_idx: list[npt.NDArray[np.int64]] = [np.zeros(1, dtype=np.int64)]

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._dtype

    def add_item(self, tensor: torch.Tensor | npt.ArrayLike) -> None:
        """Append one item; its elements are flattened, and converted if they all fit."""
        self.add_item_numpy(tensor)

    def add_item_numpy(self, np_array: torch.Tensor | npt.ArrayLike) -> None:
        item = _array(np_array)
        if item.size > _LONGEST:
            raise RuleError(f"an item of {item.size} elements: the most is {_LONGEST}")
        if item.dtype != self._dtype:
            item = self._fitted(item.reshape(-1))
        self._open().write(item.tobytes())
        self._sizes.append(item.size)

    def add_items(self, arr_list: Sequence[torch.Tensor | npt.ArrayLike]) -> None:
        """Append many items with one write."""
        arrays = [_array(item).reshape(-1) for item in arr_list]
        if arrays:
            self.add_flat(np.concatenate(arrays), [len(array) for array in arrays])

    def add_flat(
        self, elements: torch.Tensor | npt.ArrayLike, sizes: Sequence[int] | npt.NDArray[Any]
    ) -> None:
        """Append items that lie end to end in `elements`, `sizes[i]` elements each."""
        flat = _array(elements).reshape(-1)
        lengths = np.asarray(sizes, dtype=np.int64)
        if int(lengths.sum()) != len(flat):
            raise RuleError(f"sizes add up to {int(lengths.sum())}, there are {len(flat)} elements")
        if len(lengths) and int(lengths.max()) > _LONGEST:
            raise RuleError(f"an item of {int(lengths.max())} elements: the most is {_LONGEST}")
        self._open().write(np.ascontiguousarray(self._fitted(flat)).view(np.uint8).data)
        self._sizes.frombytes(lengths.astype(np.int32).tobytes())

    def _fitted(self, flat: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """`flat` as this file's type, or an error that names a value it cannot hold."""
        if flat.dtype == self._dtype or not flat.size:
            return flat.astype(self._dtype, copy=False)
        with np.errstate(invalid="ignore", over="ignore"):
            stored = flat.astype(self._dtype)
        lossy = stored != flat
        if np.issubdtype(self._dtype, np.integer) and np.issubdtype(flat.dtype, np.integer):
            lossy |= (stored < 0) != (flat < 0)  # int64 and uint64 compare as floats
        elif np.issubdtype(self._dtype, np.floating) and np.issubdtype(flat.dtype, np.floating):
            lossy = np.isinf(stored) & ~np.isinf(flat)  # rounding is expected, overflow is not
        if bool(lossy.any()):
            value = flat[int(np.flatnonzero(lossy)[0])]
            raise RuleError(f"{value} does not fit in {self._dtype.name}: build with a wider dtype")
        return stored

    def end_document(self) -> None:
        """The next item begins a new document."""
        self._doc_idx.append(np.asarray([len(self._sizes)], dtype=np.int64))

    def merge_file_(self, another_file: str | Path) -> None:
        """Append all items and documents of the pair `another_file`.bin/.idx."""
        index = read_index(another_file)
        if index.dtype != self._dtype:
            raise RuleError(
                f"{another_file} holds {index.dtype.name}, this file {self._dtype.name}: "
                "only like types can be merged"
            )
        steps = np.diff(index.pointers)
        dense = len(index.sizes) == 0 or int(index.pointers[0]) == 0
        if not dense or bool((steps != index.sizes[:-1] * np.int64(index.dtype.itemsize)).any()):
            raise FormatError(f"{another_file}: items do not lie end to end")
        with open(bin_path(another_file), "rb") as source:
            shutil.copyfileobj(source, self._open(), 1 << 22)
        self._doc_idx.append(index.doc_idx[1:] + len(self._sizes))
        self._sizes.frombytes(index.sizes.tobytes())

    def finalize(self, index_file: str | Path | None = None) -> None:
        """Write the index and give both files their names, the index last."""
        file = self._open()
        index_path = Path(index_file) if index_file else self._path.with_suffix(".idx")
        aside = index_path.with_name(f"{index_path.name}.{os.getpid()}.part")
        sizes = np.frombuffer(self._sizes, dtype=np.int32)
        with open(aside, "wb") as index:
            write_index(index, self._dtype, sizes, np.concatenate(self._doc_idx), self._dialect)
            index.flush()
            os.fsync(index.fileno())
        file.flush()
        os.fsync(file.fileno())
        file.close()
        self._file = None
        os.replace(self._aside, self._path)
        os.replace(aside, index_path)

    def close(self) -> None:
        """Give up: leave no file behind. No effect after `finalize`."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._aside.unlink(missing_ok=True)

    def __enter__(self) -> MMapIndexedDatasetBuilder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if kind is None and self._file is not None:
            self.finalize()
        self.close()

    def _open(self) -> BinaryIO:
        if self._file is None:
            raise RuleError(f"{self._path} is finished: items cannot be added any more")
        return self._file


def _array(item: torch.Tensor | npt.ArrayLike) -> npt.NDArray[Any]:
    if isinstance(item, torch.Tensor):
        return item.detach().cpu().numpy()
    return np.asarray(item)
