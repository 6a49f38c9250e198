"""Where the inputs of a checkpoint lie between forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ds_core import single
from ds_core.errors import ConfigError


class Packed(Protocol):
    """A kept tensor."""

    def unpack(self) -> Tensor: ...


class Keeper:
    """Packs activations as asked: a part a rank, in host memory, in buffers made once.

    Only floating-point activations are packed; parameters, masks and positions stay as they are.
    """

    def __init__(
        self,
        *,
        group: dist.ProcessGroup | None,
        on_cpu: bool,
        slots: int | None,
    ) -> None:
        """`group`: ranks that hold the same activations. `slots`: activations a buffer holds."""
        if slots is not None and slots < 1:
            raise ConfigError(f"number_checkpoints is {slots}: give at least 1")
        self._group = group if group is not None and dist.get_world_size(group) > 1 else None
        self._on_cpu = on_cpu
        self._arena = None if slots is None else Arena(slots)
        self.active = self._group is not None or on_cpu or slots is not None

    def pack(self, tensor: Tensor) -> Tensor | Packed:
        """What is kept instead of `tensor`; `tensor` itself if it is no activation."""
        parts = 1 if self._group is None else dist.get_world_size(self._group)
        is_weight = tensor.is_leaf and tensor.requires_grad
        if not tensor.is_floating_point() or is_weight or tensor.numel() < parts:
            return tensor
        part = tensor.detach()
        if self._group is not None:
            part = own_part(part.reshape(-1), dist.get_rank(self._group), parts)
        device = torch.device("cpu") if self._on_cpu else part.device
        if self._arena is not None:
            slot = self._arena.take(part.numel(), part.dtype, device)
            kept, owner = slot.memory, slot
        else:
            pin = self._on_cpu and part.device.type == "cuda"
            kept = torch.empty(part.numel(), dtype=part.dtype, device=device, pin_memory=pin)
            owner = None
        kept.copy_(part.reshape(-1), non_blocking=True)
        return _Kept(kept, tensor.shape, tensor.device, self._group, owner)

    def unpack(self, packed: Tensor | Packed) -> Tensor:
        """The tensor again, where it was. A collective if activations are partitioned."""
        return packed if isinstance(packed, Tensor) else packed.unpack()


def own_part(flat: Tensor, rank: int, parts: int) -> Tensor:
    """Part `rank` of `parts` equal ones, the last padded with zeros."""
    size = -(-flat.numel() // parts)
    part = flat[rank * size : (rank + 1) * size]
    missing = size - part.numel()
    return torch.cat((part, part.new_zeros(missing))) if missing else part


@dataclass(frozen=True, slots=True)
class _Kept:
    memory: Tensor
    shape: torch.Size
    device: torch.device
    group: dist.ProcessGroup | None
    owner: Slot | None

    def unpack(self) -> Tensor:
        part = self.memory.to(self.device, non_blocking=True)
        if self.group is None:
            return part.view(self.shape)
        whole = part.new_empty(part.numel() * dist.get_world_size(self.group))
        work = single.all_gather(whole, part.contiguous(), self.group)
        if work is not None:
            work.wait()
        return whole[: self.shape.numel()].view(self.shape)


class Slot:
    """A stretch of a buffer. It goes back to the buffer when nobody holds the slot any more."""

    def __init__(self, memory: Tensor, give_back: Callable[[Tensor], None]) -> None:
        self.memory = memory
        self._give_back = give_back

    def __del__(self) -> None:
        self._give_back(self.memory)


class Arena:
    """Buffers of `slots` activations each, made on first need and used again for ever."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._free: dict[tuple[int, torch.dtype, torch.device], list[Tensor]] = {}

    def take(self, numel: int, dtype: torch.dtype, device: torch.device) -> Slot:
        """A free stretch of `numel` elements; makes one more buffer if there is none."""
        free = self._free.setdefault((numel, dtype, device), [])
        if not free:
            pin = device.type == "cpu" and torch.cuda.is_available()
            buffer = torch.empty((self._slots, numel), dtype=dtype, device=device, pin_memory=pin)
            free.extend(reversed(buffer.unbind(0)))
        return Slot(free.pop(), free.append)
