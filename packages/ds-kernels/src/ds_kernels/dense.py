"""Flat contiguous views of parameters that are not contiguous themselves."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ds_kernels.lanes import Lane, check, is_usable, tensors


class Flat(NamedTuple):
    """Lanes whose tensors are all contiguous.

    Attributes:
        lanes: views or copies of those given, element by element the same.
        copies: pairs of target and source for `copy_back`.
    """

    lanes: list[Lane]
    copies: list[tuple[Tensor, Tensor]]

    def copy_back(self) -> None:
        """Write what was updated in copies to the tensors themselves."""
        for target, source in self.copies:
            target.copy_(source.view(target.shape))


def flattened(lanes: list[Lane], device: torch.device | None) -> Flat:
    """Lanes that can be stepped front to back by address.

    A transposed or channels-last parameter whose companions lie the same way is viewed in memory
    order, at no cost. What is left (true strides, mixed orders) is copied.

    Args:
        lanes: what is to be stepped.
        device: where all must lie; None: each lane where its parameter lies.

    Raises:
        TensorError: a tensor cannot be stepped.
    """
    if all(is_usable(lane, device or lane.param.device) for lane in lanes):
        return Flat(lanes, [])
    flat = Flat([], [])
    for lane in lanes:
        flat.lanes.append(_flat(lane, flat.copies))
        check(flat.lanes[-1], device or lane.param.device)
    return flat


def _flat(lane: Lane, copies: list[tuple[Tensor, Tensor]]) -> Lane:
    if not _is_strided(lane) or all(t.is_contiguous() for t in tensors(lane)):
        return lane
    viewed = _in_memory_order(lane)
    if viewed is None:
        viewed = _copied(lane)
        pairs = zip(tensors(lane), tensors(viewed), strict=True)
        copies += [(t, s) for t, s in pairs if t is not lane.grad and t is not s]
    return viewed


def _is_strided(lane: Lane) -> bool:
    """Copies make sense: same shapes, live memory (else the checks name what is wrong)."""
    return all(
        t.layout is torch.strided
        and t.device == lane.param.device
        and t.shape == lane.param.shape
        and t.untyped_storage().nbytes() > 0
        for t in tensors(lane)
    )


def _in_memory_order(lane: Lane) -> Lane | None:
    strides = lane.param.stride()
    order = sorted(range(len(strides)), key=lambda dim: -strides[dim])
    moved = [tensor.permute(order) for tensor in tensors(lane)]
    if not all(tensor.is_contiguous() for tensor in moved):
        return None
    return _rebuilt(lane, moved)


def _copied(lane: Lane) -> Lane:
    return _rebuilt(lane, [tensor.contiguous() for tensor in tensors(lane)])


def _rebuilt(lane: Lane, parts: list[Tensor]) -> Lane:
    count = len(lane.states)
    return lane._replace(
        param=parts[0],
        grad=parts[1],
        states=tuple(parts[2 : 2 + count]),
        out=None if lane.out is None else parts[-1],
    )
