"""Measure a data set with any number of workers, and write what curricula read."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ds_data.errors import MissingPart, RuleError
from ds_data.metric_files import write_single, write_total
from ds_data.metric_map import Metric, Source, Total, Values

_FLUSH_SAMPLES = 1 << 16
_FLUSH_SECONDS = 10.0

Progress = Callable[[int, int], None]
"""Called with (samples done, samples in all) of this worker."""


@dataclass(frozen=True)
class _Part:
    """What one worker leaves for the reduce: values of each metric, and how far it came."""

    folder: Path
    worker: int
    num_workers: int

    def values(self, metric: str) -> Path:
        return self.folder / "parts" / f"{metric}.{self.worker}_of_{self.num_workers}.values"

    @property
    def progress(self) -> Path:
        return self.folder / "parts" / f"{self.worker}_of_{self.num_workers}.json"

    def read(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads(self.progress.read_text())
        except FileNotFoundError:
            return {}
        return state

    def write(self, state: dict[str, Any]) -> None:
        aside = self.progress.with_suffix(f".{os.getpid()}.part")
        aside.write_text(json.dumps(state))
        os.replace(aside, self.progress)


class DataAnalyzer:
    """Map over the samples of one worker, then reduce the parts of all.

    The results do not depend on the number of workers or threads, byte for byte. A map that was
    interrupted goes on where it stopped when it is run again.

    Args:
        dataset: map-style.
        metrics: what to measure.
        save_path: where parts and results lie; shared by all workers.
        num_workers: how many processes share the map; each is given its `worker_id`.
        num_threads: threads of this worker (they help where loading waits or leaves the GIL).
        batch_size: samples a metric function sees at once.
        collate_fn: from a list of samples to a batch; torch's default if None.
        sample_indices: the id of each sample in the results; its position if None.
        progress: see `Progress`.
    """

    def __init__(
        self,
        dataset: Any,  # map-style: anything with __len__ and __getitem__
        metrics: Sequence[Metric],
        save_path: str | Path,
        *,
        num_workers: int = 1,
        worker_id: int = 0,
        num_threads: int = 1,
        batch_size: int = 1,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        sample_indices: Sequence[int] | None = None,
        progress: Progress | None = None,
    ) -> None:
        if not 0 <= worker_id < num_workers:
            raise RuleError(f"worker_id {worker_id} must lie in 0..{num_workers - 1}")
        if batch_size < 1 or not metrics:
            raise RuleError(f"batch_size {batch_size} must be at least 1, and a metric be given")
        names = [metric.name for metric in metrics]
        if len(set(names)) < len(names) or any(not name or "/" in name for name in names):
            raise RuleError(f"metrics are called {names}: each needs a file name of its own")
        if sample_indices is not None and len(sample_indices) != len(dataset):
            raise RuleError(f"{len(sample_indices)} sample_indices for {len(dataset)} samples")
        self._source = Source(dataset, batch_size, collate_fn, num_threads)
        self._metrics = list(metrics)
        self._folder = Path(save_path)
        self._worker, self._num_workers = worker_id, num_workers
        self._sample_indices = sample_indices
        self._progress = progress
        self._reported_at = 0.0

    def run_map(self) -> None:
        """Measure this worker's share of the samples."""
        part = _Part(self._folder, self._worker, self._num_workers)
        part.progress.parent.mkdir(parents=True, exist_ok=True)
        batches = self._source.share(self._worker, self._num_workers)
        identity = self._identity()
        state = part.read()
        done = int(state["batches"]) if state.get("identity") == identity else 0
        totals = {metric.name: Total() for metric in self._metrics if metric.accumulates}
        if done:
            _restore(totals, state["totals"])
        todo = range(batches.start + done, batches.stop)
        writer = _Writer(part, self._metrics, totals, identity, done, self._source, batches)
        with writer:
            for results in self._source.measure(self._metrics, todo):
                writer.add(results)
                if writer.due():
                    writer.flush()
                self._report(writer.measured, batches, least_seconds=0.2)
        self._report(writer.measured, batches)

    def _report(self, done: int, batches: range, *, least_seconds: float = 0.0) -> None:
        now = time.monotonic()
        if self._progress is not None and now - self._reported_at >= least_seconds:
            self._reported_at = now
            passed = range(batches.start, batches.start + done)
            self._progress(self._source.samples(passed), self._source.samples(batches))

    def _identity(self) -> list[Any]:
        """What must agree for a part to be usable."""
        metrics = [[metric.name, metric.kind] for metric in self._metrics]
        return [len(self._source.dataset), self._source.batch_size, metrics]

    def missing_parts(self) -> list[int]:
        """Workers whose map has not finished."""
        missing = []
        for worker in range(self._num_workers):
            state = _Part(self._folder, worker, self._num_workers).read()
            share = len(self._source.share(worker, self._num_workers))
            if state.get("identity") != self._identity() or state.get("batches") != share:
                missing.append(worker)
        return missing

    def run_reduce(self) -> None:
        """Merge the parts of all workers and remove them. Call it in one process.

        Raises:
            MissingPart: some worker's map has not finished; it is named.
        """
        missing = self.missing_parts()
        if missing:
            raise MissingPart(
                f"workers {missing} of {self._num_workers} have not finished their map in "
                f"{self._folder}: run them, then reduce again"
            )
        parts = [_Part(self._folder, w, self._num_workers) for w in range(self._num_workers)]
        for metric in self._metrics:
            if metric.accumulates:
                write_total(self._folder, metric.name, _sum(parts, metric.name))
            else:
                values = [np.fromfile(part.values(metric.name), np.int64) for part in parts]
                joined = np.concatenate(values)
                write_single(self._folder, metric.name, joined, self._sample_indices)
        for part in parts:
            for metric in self._metrics:
                part.values(metric.name).unlink(missing_ok=True)
            part.progress.unlink()
        if not any(parts[0].progress.parent.iterdir()):
            parts[0].progress.parent.rmdir()

    def run_map_reduce(self, *, timeout: float = 3600.0) -> None:
        """Map; worker 0 then waits for the others, up to `timeout` seconds, and reduces.

        Workers may start in any order. The others return after their map.
        """
        self.run_map()
        if self._worker:
            return
        deadline = time.monotonic() + timeout
        while self.missing_parts() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.run_reduce()


class _Writer:
    """Appends values to a part; what is flushed survives a kill."""

    def __init__(
        self,
        part: _Part,
        metrics: list[Metric],
        totals: dict[str, Total],
        identity: list[Any],
        done: int,
        source: Source,
        batches: range,
    ) -> None:
        self.done = done
        self._part, self._metrics, self._totals = part, metrics, totals
        self._identity = identity
        self._waiting: list[list[Values]] = []
        self._samples = 0
        self._flushed_at = time.monotonic()
        passed = source.samples(range(batches.start, batches.start + done))
        for metric in metrics:
            if not metric.accumulates:
                path = part.values(metric.name)
                path.touch()
                os.truncate(path, passed * 8)  # drops what was written after the last flush

    @property
    def measured(self) -> int:
        """Batches done, flushed or not."""
        return self.done + len(self._waiting)

    def add(self, results: list[Values]) -> None:
        self._waiting.append(results)
        for metric, values in zip(self._metrics, results, strict=True):
            if metric.accumulates:
                self._totals[metric.name].add(values)
            else:
                self._samples += len(values)

    def due(self) -> bool:
        old = time.monotonic() - self._flushed_at > _FLUSH_SECONDS
        return old or self._samples >= _FLUSH_SAMPLES

    def flush(self) -> None:
        for at, metric in enumerate(self._metrics):
            if not metric.accumulates and self._waiting:
                with open(self._part.values(metric.name), "ab") as file:
                    np.concatenate([results[at] for results in self._waiting]).tofile(file)
        self.done += len(self._waiting)
        self._waiting, self._samples, self._flushed_at = [], 0, time.monotonic()
        totals = {
            name: None
            if total.value is None or total.error is None
            else [total.value.dtype.name, total.value.tolist(), total.error.tolist()]
            for name, total in self._totals.items()
        }
        state = {"identity": self._identity, "batches": self.done, "totals": totals}
        self._part.write(state)

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.flush()


def _restore(totals: dict[str, Total], saved: dict[str, Any]) -> None:
    for name, total in totals.items():
        if saved[name] is not None:
            dtype, value, error = saved[name]
            total.value, total.error = np.asarray(value, dtype), np.asarray(error, dtype)


def _sum(parts: list[_Part], metric: str) -> Values:
    whole = Total()
    for part in parts:
        piece = {metric: Total()}
        _restore(piece, part.read()["totals"])
        whole.merge(piece[metric])
    result = whole.result()
    return np.zeros(0, np.int64) if result is None else result
