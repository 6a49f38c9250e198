"""The analyzer over the ranks of a process group: no parts on disk, one writer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ds_data.errors import RuleError
from ds_data.metric_files import write_single, write_total
from ds_data.metric_map import Metric, Source, Total, Values


class DistributedDataAnalyzer:
    """Each rank measures its share; rank 0 of the group writes the same files as `DataAnalyzer`.

    Args:
        dataset, metrics, save_path, batch_size, collate_fn, num_threads, sample_indices: as for
            `DataAnalyzer`.
        group: the ranks that take part; all if None.
        device: where tensors travel: "cuda" for NCCL.
    """

    def __init__(
        self,
        dataset: Any,  # map-style
        metrics: Sequence[Metric],
        save_path: str | Path,
        *,
        group: dist.ProcessGroup | None = None,
        device: str | torch.device = "cpu",
        batch_size: int = 1,
        num_threads: int = 1,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        sample_indices: Sequence[int] | None = None,
    ) -> None:
        if not dist.is_initialized():
            raise RuleError("initialise torch.distributed first, or use DataAnalyzer")
        self._source = Source(dataset, batch_size, collate_fn, num_threads)
        self._metrics = list(metrics)
        self._folder = Path(save_path)
        self._group, self._device = group, torch.device(device)
        self._sample_indices = sample_indices

    def run_map_reduce(self) -> None:
        """Measure, gather, write; returns on every rank when the files are there."""
        rank, size = dist.get_rank(self._group), dist.get_world_size(self._group)
        shares = [self._source.share(worker, size) for worker in range(size)]
        values: dict[str, list[Values]] = {metric.name: [] for metric in self._metrics}
        totals = {metric.name: Total() for metric in self._metrics}
        for results in self._source.measure(self._metrics, shares[rank]):
            for metric, result in zip(self._metrics, results, strict=True):
                if metric.accumulates:
                    totals[metric.name].add(result)
                else:
                    values[metric.name].append(result)
        lengths = [self._source.samples(share) for share in shares]
        for metric in self._metrics:
            if metric.accumulates:
                self._reduce_total(metric.name, totals[metric.name])
            else:
                mine = np.concatenate([*values[metric.name], np.zeros(0, np.int64)])
                self._reduce_single(metric.name, mine, lengths)
        dist.barrier(self._group)

    def _reduce_single(self, name: str, mine: Values, lengths: list[int]) -> None:
        """Gather pieces of known lengths on the first rank, which writes them."""
        rank = dist.get_rank(self._group)
        widest = max(lengths)
        padded = torch.zeros(widest, dtype=torch.int64, device=self._device)
        padded[: len(mine)] = torch.from_numpy(mine.astype(np.int64))
        pieces = [torch.empty_like(padded) for _ in lengths] if rank == 0 else None
        first = 0 if self._group is None else dist.get_global_rank(self._group, 0)
        dist.gather(padded, pieces, dst=first, group=self._group)
        if pieces is not None:
            joined = np.concatenate(
                [piece[:size].cpu().numpy() for piece, size in zip(pieces, lengths, strict=True)]
            )
            write_single(self._folder, name, joined, self._sample_indices)

    def _reduce_total(self, name: str, mine: Total) -> None:
        """Gather the sums on the first rank, in rank order, and write their total."""
        rank, size = dist.get_rank(self._group), dist.get_world_size(self._group)
        pieces: list[Any] | None = [None] * size if rank == 0 else None
        first = 0 if self._group is None else dist.get_global_rank(self._group, 0)
        dist.gather_object((mine.value, mine.error), pieces, dst=first, group=self._group)
        if pieces is None:
            return
        whole = Total()
        for value, error in pieces:
            piece = Total()
            piece.value, piece.error = value, error
            whole.merge(piece)
        result = whole.result()
        write_total(self._folder, name, np.zeros(0, np.int64) if result is None else result)
