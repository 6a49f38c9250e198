"""Micro-batches in, results out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from ds_pipeline.errors import PipelineError


class PassFacts(Protocol):
    """What the source says in messages."""

    micro_batches: int


class BatchSource:
    """Where a stage takes `(inputs, labels)` from.

    Args:
        me: what messages call this stage.
    """

    def __init__(self, me: str) -> None:
        self._me = me
        self.iterator: Iterator[Any] | None = None
        self.batch_fn: Callable[[Any], Any] | None = None
        self._given: Iterator[Any] | None = None
        self._taken = 0

    def set_loader(self, loader: Iterable[Any]) -> None:
        """Take batches from a loader, over and over."""
        self.iterator = _repeated(loader)

    def begin(self, given: Iterator[Any] | None) -> None:
        """A pass begins, with its own iterator or without."""
        self._given, self._taken = given, 0

    def next(self, device: torch.device, facts: PassFacts) -> tuple[Any, Any]:
        """The next micro-batch, on `device`."""
        iterator = self._given if self._given is not None else self.iterator
        if iterator is None:
            raise PipelineError(
                f"{self._me} needs data: pass an iterator, or call set_dataiterator() or "
                "set_dataloader() on the first and the last stage"
            )
        if not callable(getattr(iterator, "__next__", None)):
            raise PipelineError(
                f"{self._me} got a {type(iterator).__name__} where an iterator of micro-batches is "
                "expected: pass iter() of it, made once, or give it to set_dataloader()"
            )
        try:
            batch = next(iterator)
        except StopIteration:
            raise PipelineError(
                f"the data of {self._me} ended after {self._taken} of {facts.micro_batches} "
                "micro-batches of this batch"
            ) from None
        self._taken += 1
        batch = self.batch_fn(batch) if self.batch_fn is not None else batch
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise PipelineError(
                f"{self._me} got a {type(batch).__name__} where (inputs, labels) is expected; "
                "set_batch_fn() can make one of it"
            )
        inputs, labels = batch
        return to_device(inputs, device), to_device(labels, device)


def _repeated(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise PipelineError("the data loader yields no batch at all")


def to_device(value: Any, device: torch.device) -> Any:
    """A nested value with its tensors on `device`; lists become tuples, as layers know them."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, (tuple, list)):
        return tuple(to_device(item, device) for item in value)
    if isinstance(value, dict):
        return {key: to_device(item, device) for key, item in value.items()}
    return value


def concatenated(results: list[Any]) -> Any:
    """Outputs of micro-batches behind each other, or a list where their shapes do not allow it."""
    if len(results) == 1:
        return results[0]
    same = all(
        torch.is_tensor(r) and r.dim() and r.shape[1:] == results[0].shape[1:] for r in results
    )
    return torch.cat(results) if same else results


def mean_of(results: list[Any]) -> Any:
    """The mean of outputs over micro-batches, or the list if they are not alike."""
    if all(torch.is_tensor(r) and r.shape == results[0].shape for r in results):
        return torch.stack(results).mean(dim=0) if results[0].is_floating_point() else results
    return results
