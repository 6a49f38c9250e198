"""Small objects sent between ranks as pickled bytes, each transfer a wait that can be told of."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from ds_core import single

if TYPE_CHECKING:
    from ds_core.comm import Communicator


def gather(comm: Communicator, value: Any, what: str) -> list[Any]:
    """Each rank's picklable `value`, by rank; `what` names it to who waits too long."""
    mine = _pickled(value, comm.device)
    sizes = torch.empty(comm.world_size, dtype=torch.int64, device=comm.device)
    own = torch.tensor([mine.numel()], device=comm.device)
    comm.wait_for(single.all_gather(sizes, own, comm.group), what)
    longest = int(sizes.max())
    padded = torch.nn.functional.pad(mine, (0, longest - mine.numel()))
    every = padded.new_empty(comm.world_size * longest)
    comm.wait_for(single.all_gather(every, padded, comm.group), what)
    parts = zip(every.view(comm.world_size, longest), sizes.tolist(), strict=True)
    return [_unpickled(part[:size]) for part, size in parts]


def spread(comm: Communicator, value: Any, src: int, what: str) -> Any:
    """The picklable `value` of rank `src` of the group, on every rank."""
    is_source, source = comm.rank == src, comm.global_rank(src)
    sent = _pickled(value if is_source else None, comm.device)
    size = torch.tensor([sent.numel()], device=comm.device)
    comm.wait_for(dist.broadcast(size, source, comm.group, async_op=True), what)
    if not is_source:
        sent = sent.new_empty(int(size))
    comm.wait_for(dist.broadcast(sent, source, comm.group, async_op=True), what)
    return value if is_source else _unpickled(sent)


def _pickled(value: Any, device: torch.device) -> Tensor:
    return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8).to(device)


def _unpickled(data: Tensor) -> Any:
    return pickle.loads(data.cpu().numpy().tobytes())
