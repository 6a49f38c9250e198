"""Functions around indexed data sets under their old names."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from ds_core.errors import ConfigError
from ds_data import MMapIndexedDataset, MMapIndexedDatasetBuilder, best_dtype
from ds_data.indexed_format import bin_path, dtype_code, idx_path
from ds_data.indexed_lists import (
    IndexedCachedDataset,
    IndexedDataset,
    IndexedDatasetBuilder,
    is_list_index,
    starts_of,
)


def get_available_dataset_impl() -> list[str]:
    return ["lazy", "cached", "mmap"]


def infer_dataset_impl(path: str | Path) -> str | None:
    """Which kind of index lies at `path`; None if there is none."""
    if not idx_path(path).exists():
        return None
    return "cached" if is_list_index(path) else "mmap"


def dataset_exists(path: str | Path, impl: str) -> bool:
    return MMapIndexedDataset.exists(path)


def make_builder(out_file: str | Path, impl: str, vocab_size: int | None = None) -> Any:
    """A builder of `out_file`; token ids of a small vocabulary take two bytes in 'mmap'."""
    if impl == "mmap":
        return MMapIndexedDatasetBuilder(out_file, best_dtype(vocab_size))
    return IndexedDatasetBuilder(out_file)


def make_dataset(path: str | Path, impl: str, skip_warmup: bool = False) -> Any:
    """Open the data set at `path`; `infer` looks at its index."""
    kind = infer_dataset_impl(path) if impl == "infer" else impl
    if kind is None or not MMapIndexedDataset.exists(path):
        raise ConfigError(f"there is no data set at {path}.bin and {path}.idx")
    makers = {"mmap": MMapIndexedDataset, "lazy": IndexedDataset, "cached": IndexedCachedDataset}
    if kind not in makers:
        raise ConfigError(f"impl is {impl!r}: expected one of infer, {', '.join(makers)}")
    return makers[kind](path)


def code(dtype: npt.DTypeLike) -> int:
    return dtype_code(dtype)


def create_doc_idx(sizes: Sequence[int]) -> list[int]:
    """Where documents begin if empty items end them."""
    return starts_of(list(sizes))


def data_file_path(prefix_path: str) -> str:
    return str(bin_path(prefix_path))


def index_file_path(prefix_path: str) -> str:
    return str(idx_path(prefix_path))


def exscan_from_cumsum_(arr: npt.NDArray[Any]) -> None:
    """Turn running totals into totals before each item, in place."""
    if arr.size > 1:
        arr[1:] = arr[:-1].copy()
    arr[:1] = 0


def get_pointers_with_total(
    sizes: Sequence[int], elemsize: int, dtype: Any
) -> tuple[npt.NDArray[Any], int]:
    """Byte offset of each item, and the end of the last."""
    total = np.cumsum(np.asarray(sizes, dtype=dtype) * elemsize)
    end = int(total[-1]) if len(total) else 0
    exscan_from_cumsum_(total)
    return total, end


def read_longs(f: BinaryIO, n: int) -> npt.NDArray[np.int64]:
    return np.frombuffer(f.read(8 * n), "<i8").copy()


def write_longs(f: BinaryIO, a: Sequence[int]) -> None:
    f.write(struct.pack(f"<{len(a)}q", *(int(item) for item in a)))
