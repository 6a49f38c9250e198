"""The data loader that `initialize` makes of a data set, and one that never ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, RandomSampler


class RepeatingLoader:
    """Begins again whenever `loader` ends; one that yields nothing is an error."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self._epoch = 0
        self._iterator: Iterator[Any] = iter(loader)

    def __iter__(self) -> RepeatingLoader:
        return self

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        try:
            return next(self._iterator)
        except StopIteration:
            self._epoch += 1
            set_epoch = getattr(getattr(self.loader, "sampler", None), "set_epoch", None)
            if set_epoch is not None:
                set_epoch(self._epoch)
            self._iterator = iter(self.loader)
            try:
                return next(self._iterator)
            except StopIteration:
                raise ValueError("the loader to repeat yields no batch at all") from None


class DeepSpeedDataLoader:
    """Micro-batches of this rank's part of a data set.

    Each epoch is shuffled anew over the ranks, unless a sampler is given.

    Args:
        dataset: map-style or iterable; an iterable one must give each rank its own samples.
        batch_size: samples of a micro-batch.
        pin_memory: put batches into page-locked memory (only with an accelerator).
        collate_fn: makes a batch of samples.
        num_local_io_workers: loader processes.
        data_sampler: indices of this rank's samples, or batches of indices if it says so by
            having a `batch_size`-less `__iter__` of lists (a batch sampler).
        data_parallel_world_size: ranks that share the data set.
        data_parallel_rank: this one's number.
        dataloader_drop_last: leave out an incomplete last batch.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        pin_memory: bool = False,
        local_rank: int = 0,
        tput_timer: Any = None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_local_io_workers: int | None = None,
        data_sampler: Any = None,
        data_parallel_world_size: int | None = None,
        data_parallel_rank: int | None = None,
        dataloader_drop_last: bool = False,
        deepspeed_dataloader_config: dict[str, Any] | None = None,
    ) -> None:
        world, rank = data_parallel_world_size or 1, data_parallel_rank or 0
        self.dataset, self.batch_size, self._timer = dataset, batch_size, tput_timer
        arguments: dict[str, Any] = {
            "batch_size": batch_size,
            "pin_memory": pin_memory and torch.accelerator.is_available(),
            "collate_fn": collate_fn,
            "num_workers": num_local_io_workers or 0,
            "drop_last": dataloader_drop_last,
        }
        if not isinstance(dataset, IterableDataset):
            if data_sampler is not None:
                arguments["sampler"] = data_sampler
            elif world > 1:
                arguments["sampler"] = DistributedSampler(dataset, num_replicas=world, rank=rank)
            else:
                arguments["sampler"] = RandomSampler(dataset)  # type: ignore[arg-type]
        self.dataloader: DataLoader[Any] = DataLoader(dataset, **arguments)
        self.sampler = arguments.get("sampler")
        self.post_process_func: Callable[..., Any] | None = None
        self._epoch = 0

    @property
    def data_sampler(self) -> Any:
        """What decides the order of samples."""
        return self.sampler

    def __len__(self) -> int:
        return len(self.dataloader)

    def __iter__(self) -> Iterator[Any]:
        set_epoch = getattr(self.sampler, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(self._epoch)
        self._epoch += 1
        for batch in self.dataloader:
            if self._timer is not None:
                self._timer.start()
            yield batch if self.post_process_func is None else self.post_process_func(batch)
