"""Values of parameters that one rank edits and all take over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ds_core.comm import Communicator
from ds_core.errors import ConfigError, StateError


def require_rank(comm: Communicator, rank: object) -> None:
    """Raise a `ConfigError` if `modifier_rank` is no rank of the group."""
    if not isinstance(rank, int) or not 0 <= rank < comm.world_size:
        raise ConfigError(
            f"modifier_rank {rank!r} must be the rank whose edits count, a whole number from 0 to "
            f"{comm.world_size - 1} (group '{comm.name}'), or None where nothing is edited"
        )


def require_kept(
    comm: Communicator, wanted: Iterable[tuple[str, nn.Parameter, torch.Size, torch.dtype]]
) -> None:
    """Raise on all ranks if an edit gave a parameter another shape or format on one of them."""
    changed = [
        f"'{name}' has shape {tuple(param.shape)} and {param.dtype} after an edit on rank "
        f"{comm.rank}, {tuple(shape)} and {dtype} before"
        for name, param, shape, dtype in wanted
        if param.shape != shape or param.dtype != dtype
    ]
    if comm.sum_number(len(changed), label="edits"):
        every = [each for rank in comm.all_gather_object(changed) for each in rank]
        raise StateError(f"{'; '.join(every)}. A parameter keeps both: edit its values in place")


def take_over(comm: Communicator, tensor: Tensor, source: int, *, label: str) -> None:
    """Let `tensor` hold rank `source`'s values on all ranks, however it lies in memory."""
    whole = tensor.data.contiguous()
    comm.broadcast(whole, source, label=label).wait()
    if whole.data_ptr() != tensor.data_ptr():
        tensor.data.copy_(whole)


@contextmanager
def edits_of(
    comm: Communicator, params: Mapping[nn.Parameter, str], source: int | None
) -> Iterator[None]:
    """On leaving, all ranks hold rank `source`'s values of `params` (named), in their order.

    None for `source` does nothing.
    """
    if source is None:
        yield
        return
    require_rank(comm, source)
    before = [(name, param, param.data) for param, name in params.items()]
    yield
    try:
        require_kept(comm, [(name, p, old.shape, old.dtype) for name, p, old in before])
    except StateError:
        for _, param, old in before:
            param.data = old
        raise
    for param, name in params.items():
        take_over(comm, param, source, label=f"edit of {name}")
