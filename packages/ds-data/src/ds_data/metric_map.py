"""Apply metrics to a range of a data set, batch by batch and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import default_collate

from ds_data.errors import RuleError

Kind = Literal["single_value_per_sample", "accumulate_value_over_samples"]
Values = npt.NDArray[Any]


@dataclass(frozen=True)
class Metric:
    """What to measure.

    Attributes:
        name: also names the files.
        function: from a collated batch to one integer a sample, or, for a kind that accumulates,
            to an array that is summed over the data set.
        kind: which of the two.
    """

    name: str
    function: Callable[[Any], Any]
    kind: Kind = "single_value_per_sample"

    def __post_init__(self) -> None:
        if self.kind not in ("single_value_per_sample", "accumulate_value_over_samples"):
            raise RuleError(
                f"metric {self.name!r} has type {self.kind!r}: expected "
                "'single_value_per_sample' or 'accumulate_value_over_samples'"
            )

    @property
    def accumulates(self) -> bool:
        return self.kind == "accumulate_value_over_samples"

    def measure(self, batch: Any, size: int) -> Values:
        """The metric of a batch of `size` samples, checked."""
        result = self.function(batch)
        values = result.detach().cpu().numpy() if isinstance(result, torch.Tensor) else result
        values = np.asarray(values)
        if self.accumulates:
            return values
        values = values.reshape(-1)
        if len(values) != size:
            raise RuleError(f"metric {self.name!r} gave {len(values)} values for {size} samples")
        if values.dtype.kind not in "iub":
            raise RuleError(
                f"metric {self.name!r} gave {values.dtype.name}: single values are stored as "
                "integers, scale and round them"
            )
        return values.astype(np.int64)


class Total:
    """A running sum that is exact for integers and carries its rounding error for floats."""

    def __init__(self) -> None:
        self.value: Values | None = None
        self.error: Values | None = None

    def add(self, values: Values) -> None:
        wide = np.float64 if values.dtype.kind == "f" else np.int64
        values = values.astype(wide)
        if self.value is None or self.error is None:
            self.value, self.error = values, np.zeros_like(values)
            return
        total = self.value + values
        if wide is np.float64:  # two-sum: what the addition rounded away
            shadow = total - self.value
            self.error += (self.value - (total - shadow)) + (values - shadow)
        self.value = total

    def merge(self, other: Total) -> None:
        if other.value is not None and other.error is not None:
            self.add(other.value)
            self.add(other.error)

    def result(self) -> Values | None:
        return None if self.value is None or self.error is None else self.value + self.error


@dataclass(frozen=True)
class Source:
    """A data set and how batches are made of it."""

    dataset: Any  # map-style
    batch_size: int = 1
    collate_fn: Callable[[list[Any]], Any] | None = None
    num_threads: int = 1

    def batches(self) -> int:
        return -(-len(self.dataset) // self.batch_size)

    def share(self, worker: int, num_workers: int) -> range:
        """The batches of a worker; batches are the same for any number of workers."""
        total = self.batches()
        return range(total * worker // num_workers, total * (worker + 1) // num_workers)

    def samples(self, batches: range) -> int:
        """How many samples a contiguous range of batches holds."""
        if not len(batches):
            return 0
        end = min(batches.stop * self.batch_size, len(self.dataset))
        return end - batches.start * self.batch_size

    def measure(self, metrics: Sequence[Metric], batches: range) -> Iterator[list[Values]]:
        """The metrics of each batch, in the order of batches whatever the number of threads."""

        def one(batch: int) -> list[Values]:
            begin = batch * self.batch_size
            end = min(begin + self.batch_size, len(self.dataset))
            samples = [self.dataset[index] for index in range(begin, end)]
            collated = (self.collate_fn or default_collate)(samples)
            return [metric.measure(collated, end - begin) for metric in metrics]

        if self.num_threads <= 1:
            yield from map(one, batches)
            return
        with ThreadPoolExecutor(self.num_threads) as pool:
            remaining = iter(batches)
            window = 64 * self.num_threads  # bounds what waits in memory
            while chunk := list(islice(remaining, window)):
                yield from pool.map(one, chunk)
