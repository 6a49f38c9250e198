"""The data analyzers under their old signatures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ds_data
from ds_core.errors import ConfigError
from ds_data import Metric


def _metrics(
    names: Sequence[str], functions: Sequence[Callable[[Any], Any]], types: Sequence[str]
) -> list[Metric]:
    if not len(names) == len(functions) == len(types):
        raise ConfigError(
            f"{len(names)} metric_names, {len(functions)} metric_functions and {len(types)} "
            "metric_types: there must be equally many"
        )
    return [
        Metric(name, function, kind)  # type: ignore[arg-type]  # checked by Metric
        for name, function, kind in zip(names, functions, types, strict=True)
    ]


class DataAnalyzer(ds_data.DataAnalyzer):
    """`ds_data.DataAnalyzer` with metrics in parallel lists.

    Results take the smallest type that holds them, so `metric_dtypes` is not needed; one process
    merges, so neither are `num_threads_reduce` and `specific_threads`.
    """

    def __init__(
        self,
        dataset: Any,
        num_workers: int = 1,
        worker_id: int = 0,
        num_threads: int = 1,
        num_threads_reduce: int = 1,
        specific_threads: Sequence[int] = (),
        batch_size: int = 1,
        metric_names: Sequence[str] = (),
        metric_functions: Sequence[Callable[[Any], Any]] = (),
        metric_types: Sequence[str] = (),
        metric_dtypes: Sequence[Any] = (),
        save_path: str = "./",
        collate_fn: Callable[[list[Any]], Any] | None = None,
        custom_map_init: Any = None,
        custom_map_update: Any = None,
        custom_map_finalize: Any = None,
        custom_reduce: Any = None,
        sample_indices: Sequence[int] | None = None,
    ) -> None:
        custom = (custom_map_init, custom_map_update, custom_map_finalize, custom_reduce)
        if any(step is not None for step in custom):
            raise ConfigError("custom map and reduce steps are not supported: pass a metric")
        super().__init__(
            dataset,
            _metrics(metric_names, metric_functions, metric_types),
            save_path,
            num_workers=num_workers,
            worker_id=worker_id,
            num_threads=num_threads,
            batch_size=batch_size,
            collate_fn=collate_fn,
            sample_indices=sample_indices,
            progress=ds_data.progress_bar(f"analysing, worker {worker_id}"),
        )

    def run_map_reduce(self, comm_group: Any = None, *, timeout: float = 3600.0) -> None:
        """Map; worker 0 waits for the others and reduces."""
        super().run_map_reduce(timeout=timeout)


class DistributedDataAnalyzer(ds_data.DistributedDataAnalyzer):
    """`ds_data.DistributedDataAnalyzer` with metrics in parallel lists.

    Worker numbers come from the process group.
    """

    def __init__(
        self,
        dataset: Any,
        num_workers: int = 1,
        num_threads: int = 1,
        worker_id: int = 0,
        batch_size: int = 1,
        metric_names: Sequence[str] = (),
        metric_functions: Sequence[Callable[[Any], Any]] = (),
        metric_types: Sequence[str] = (),
        save_path: str = "./",
        collate_fn: Callable[[list[Any]], Any] | None = None,
        device: str = "cuda",
        comm_group: Any = None,
        sample_indices: Sequence[int] | None = None,
    ) -> None:
        super().__init__(
            dataset,
            _metrics(metric_names, metric_functions, metric_types),
            save_path,
            group=comm_group,
            device=device,
            batch_size=batch_size,
            num_threads=num_threads,
            collate_fn=collate_fn,
            sample_indices=sample_indices,
        )
