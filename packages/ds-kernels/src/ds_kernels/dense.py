"""Flat contiguous views of parameters that are not contiguous themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ds_kernels.lanes import Lane, tensors


@contextmanager
def aligned_views(lanes: list[Lane]) -> Iterator[list[Lane]]:
    """Lanes whose tensors are all contiguous, element by element the same as those given.

    A transposed or channels-last parameter whose companions lie the same way is viewed in memory
    order, at no cost. What is left (true strides, mixed orders) is copied, and copied back at the
    end of the context.
    """
    flat: list[Lane] = []
    back: list[tuple[Tensor, Tensor]] = []
    for lane in lanes:
        if not _is_strided(lane) or all(t.is_contiguous() for t in tensors(lane)):
            flat.append(lane)
            continue
        viewed = _in_memory_order(lane)
        if viewed is None:
            viewed = _copied(lane)
            back += [
                (target, source)
                for target, source in zip(tensors(lane), tensors(viewed), strict=True)
                if target is not lane.grad and target is not source
            ]
        flat.append(viewed)
    yield flat
    for target, source in back:
        target.copy_(source.view(target.shape))


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
