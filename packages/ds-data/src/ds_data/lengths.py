"""The length of every sample: read where it is known, else measured once and kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ds_data.analyzer import DataAnalyzer
from ds_data.analyzer_distributed import DistributedDataAnalyzer
from ds_data.errors import RuleError
from ds_data.indexed import MMapIndexedDataset
from ds_data.metric_files import metric_prefix, read_sample_values
from ds_data.metric_map import Metric
from ds_data.packing import Ints

METRIC = "seqlen"


def sample_lengths(
    dataset: Any,  # map-style
    metrics_path: str | Path,
    batch_seqlens_fn: Callable[[Any], Any] | None = None,
    *,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    batch_size: int = 64,
    device: str = "cpu",
) -> Ints:
    """Lengths from `metrics_path/seqlen/seqlen_sample_to_metric.bin/.idx`.

    If the files are not there, `batch_seqlens_fn` measures each batch, over all ranks where a
    process group is up, and the files are written for later runs.

    Args:
        batch_seqlens_fn: from a collated batch to the lengths of its samples; if None, samples
            are not collated and `len` of each (of its first field, if it is a tuple) is taken.
    """
    if not MMapIndexedDataset.exists(metric_prefix(metrics_path, METRIC, "sample_to_metric")):
        if batch_seqlens_fn is None:
            metric, collate_fn = Metric(METRIC, _plain_lengths), list
        else:
            metric = Metric(METRIC, batch_seqlens_fn)
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            DistributedDataAnalyzer(
                dataset,
                [metric],
                metrics_path,
                batch_size=batch_size,
                collate_fn=collate_fn,
                device=device,
            ).run_map_reduce()
        else:
            analyzer = DataAnalyzer(
                dataset, [metric], metrics_path, batch_size=batch_size, collate_fn=collate_fn
            )
            analyzer.run_map_reduce()
    lengths = read_sample_values(metrics_path, METRIC)
    if len(lengths) != len(dataset):
        raise RuleError(
            f"{metrics_path} knows the lengths of {len(lengths)} samples, the data set has "
            f"{len(dataset)}: remove the files of another data set"
        )
    return lengths


def _plain_lengths(samples: list[Any]) -> list[int]:
    return [len(sample[0] if isinstance(sample, tuple) else sample) for sample in samples]
