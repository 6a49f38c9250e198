"""Lets edits of parameters that are whole (stages 0 to 2) inside `GatheredParameters` reach all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from torch import nn

_ATTRIBUTE = "ds_edits"

Gather = Callable[..., AbstractContextManager[None]]
"""`UpdateStrategy.gather`."""


class _Edits:
    def __init__(self, gather: Gather) -> None:
        self._gather = gather

    def __reduce__(self) -> Any:
        return (_no_edits, ())  # a pickled parameter is an ordinary one

    def of(self, params: list[nn.Parameter], source: int) -> AbstractContextManager[None]:
        return self._gather(params, modifier_rank=source)


def show_edits(params: Iterable[nn.Parameter], gather: Gather) -> None:
    """Let `taking_over` find the strategy that owns these parameters; set here only."""
    edits = _Edits(gather)
    for param in params:
        setattr(param, _ATTRIBUTE, edits)


def hide_edits(params: Iterable[nn.Parameter]) -> None:
    """Undo `show_edits`."""
    for param in params:
        param.__dict__.pop(_ATTRIBUTE, None)


@contextmanager
def taking_over(tensors: Iterable[Any], source: int | None) -> Iterator[None]:
    """On leaving, all ranks hold rank `source`'s values of those that a strategy owns."""
    if source is None:
        yield
        return
    owned: dict[_Edits, list[nn.Parameter]] = {}
    for tensor in dict.fromkeys(tensors):
        edits = getattr(tensor, "__dict__", {}).get(_ATTRIBUTE)
        if isinstance(edits, _Edits):
            owned.setdefault(edits, []).append(tensor)
    with ExitStack() as stack:
        for edits, params in owned.items():
            stack.enter_context(edits.of(params, source))
        yield


def _no_edits() -> None:
    """What a pickle has in place of it."""
