"""The files that an analysis leaves: one writer, the layout that curriculum samplers read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ds_data.errors import FormatError
from ds_data.indexed import MMapIndexedDataset
from ds_data.indexed_builder import MMapIndexedDatasetBuilder
from ds_data.indexed_format import smallest_unsigned

Ints = npt.NDArray[np.int64]

PERCENTILES = 100


def metric_prefix(folder: str | Path, metric: str, table: str) -> Path:
    """Common part of the two names of a metric's table, e.g. `sample_to_metric`."""
    return Path(folder) / metric / f"{metric}_{table}"


def write_single(
    folder: str | Path, metric: str, values: Ints, samples: Sequence[int] | Ints | None = None
) -> None:
    """Write the four tables of a metric that has one value a sample.

    `sample_to_metric` (one value each), `index_to_metric` (the distinct values, ascending),
    `index_to_sample` (the samples of each), `index_to_sample_percentile_merged` (all samples by
    value, in 100 pieces).

    Args:
        samples: the id of each value's sample; positions if None.
    """
    ids = np.arange(len(values)) if samples is None else np.asarray(samples, dtype=np.int64)
    order = np.argsort(values, kind="stable")
    ordered, sorted_ids = values[order], ids[order]
    edges = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    distinct, counts = ordered[edges], np.diff(np.append(edges, len(values)))
    number = _fitting(values)
    id_type = smallest_unsigned(int(ids.max(initial=0)))
    pieces = np.diff(len(values) * np.arange(PERCENTILES + 1) // PERCENTILES)
    for table, dtype, elements, sizes in (
        ("sample_to_metric", number, values, np.ones(len(values), np.int64)),
        ("index_to_metric", number, distinct, np.ones(len(distinct), np.int64)),
        ("index_to_sample", id_type, sorted_ids, counts),
        ("index_to_sample_percentile_merged", id_type, sorted_ids, pieces),
    ):
        _write(metric_prefix(folder, metric, table), dtype, elements, sizes)


def write_total(folder: str | Path, metric: str, total: npt.NDArray[Any]) -> None:
    """Write the one table of a metric that was summed over the data set."""
    flat = total.reshape(-1)
    prefix = metric_prefix(folder, metric, "metric_value")
    if flat.dtype.kind == "f":
        with MMapIndexedDatasetBuilder(f"{prefix}.bin", np.float64, dialect="megatron") as builder:
            builder.add_item(flat)
            builder.end_document()
        return
    _write(prefix, _fitting(flat), flat, np.asarray([len(flat)]))


def _fitting(values: Ints) -> np.dtype[Any]:
    if not len(values) or int(values.min()) >= 0:
        return smallest_unsigned(int(values.max(initial=0)))
    reach = max(-int(values.min()) - 1, int(values.max()))
    return next(np.dtype(name) for name in ("i1", "i2", "i4", "i8") if reach <= np.iinfo(name).max)


def _write(prefix: Path, dtype: np.dtype[Any], elements: Ints, sizes: Ints) -> None:
    with MMapIndexedDatasetBuilder(f"{prefix}.bin", dtype) as builder:
        builder.add_flat(elements.astype(dtype), sizes)
        builder.end_document()


def read_sample_values(folder: str | Path, metric: str) -> Ints:
    """One value a sample, as `write_single` (or the peer) wrote it."""
    dataset = MMapIndexedDataset(metric_prefix(folder, metric, "sample_to_metric"))
    if len(dataset.flat()) != len(dataset):
        raise FormatError(f"{metric}_sample_to_metric does not hold one value a sample")
    return dataset.flat().astype(np.int64)
