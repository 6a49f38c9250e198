"""Whole and local views of masters, moments and gradients, by parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ds_core.comm import Communicator
from ds_core.contracts import WEIGHT
from ds_core.errors import ConfigError
from ds_zero.plan import Slice, cut
from ds_zero.segments import Segment
from ds_zero.strategy import ShardedUpdate

GRADIENT = "gradient"
"""The slot of a parameter's gradient in the closed window."""


class Access:
    """Reads and writes what ranks own of a parameter.

    `full`, `set_full` are collective: every rank of the group calls them. Values are fp32 (the
    masters' format). Writes to `WEIGHT` reach the parameter through `publish`.

    Args:
        update: the step whose state this is.
        comm: the data-parallel group.
        publish: called after a write to `WEIGHT`, on every rank.
    """

    def __init__(
        self,
        update: ShardedUpdate,
        comm: Communicator,
        *,
        publish: Callable[[nn.Parameter], None],
    ) -> None:
        self._update, self._comm, self._publish = update, comm, publish
        self._where: dict[nn.Parameter, list[tuple[Segment, Slice]]] = {
            param: [] for unit in update.units for param in unit.params
        }
        for segment in update.owned.segments:
            for piece in segment.slices:
                self._where[segment.unit.params[piece.index]].append((segment, piece))

    def __reduce__(self) -> Any:
        return (_no_access, ())  # a pickled parameter is an ordinary one

    def __contains__(self, param: object) -> bool:
        return param in self._where

    def full(self, param: nn.Parameter, slot: str) -> Tensor | None:
        """The whole value of `slot`, in the parameter's shape; None if there is none."""
        fact = self._update.facts[param]
        if slot == GRADIENT and not self._update.gradients.reduced:
            return None
        box = torch.zeros(fact.numel + 1, device=param.device)
        for piece, own in self._pieces(param, slot):
            box[piece.start : piece.start + piece.length] = own
            box[-1] = 1
        if slot == GRADIENT:
            box[-1] = param in self._update.gradients.used()
        self._comm.all_reduce(box, label=f"{slot} of {fact.name}").wait()
        return box[:-1].view(fact.shape) if box[-1] > 0 else None

    def local(self, param: nn.Parameter, slot: str) -> Tensor | None:
        """A flat copy of what this rank owns of `slot`; None if there is none."""
        found = [own.detach().clone() for _, own in self._pieces(param, slot)]
        return torch.cat(found) if found else None

    def set_full(self, param: nn.Parameter, slot: str, value: Tensor) -> None:
        """Let each rank take its part of `value`, which has the parameter's whole shape."""
        fact = self._update.facts[param]
        if value.numel() != fact.numel:
            raise ConfigError(
                f"'{fact.name}' has shape {tuple(fact.shape)}; a value of shape "
                f"{tuple(value.shape)} does not fit"
            )
        flat = value.detach().reshape(-1)
        for piece, own in self._pieces(param, slot, changed=True):
            own.copy_(flat[piece.start : piece.start + piece.length])
        if slot == WEIGHT:
            self._publish(param)

    def set_local(self, param: nn.Parameter, slot: str, value: Tensor) -> None:
        """Overwrite what this rank owns of `slot` with flat `value`."""
        flat, offset = value.detach().reshape(-1), 0
        own_numel = sum(piece.length for _, piece in self._where[param])
        if flat.numel() != own_numel:
            name = self._update.facts[param].name
            raise ConfigError(
                f"this rank owns {own_numel} elements of '{name}', not {flat.numel()}"
            )
        for piece, own in self._pieces(param, slot, changed=True):
            own.copy_(flat[offset : offset + piece.length])
            offset += piece.length
        if slot == WEIGHT:
            self._publish(param)

    def _pieces(
        self, param: nn.Parameter, slot: str, *, changed: bool = False
    ) -> Iterator[tuple[Slice, Tensor]]:
        """(slice, this rank's elements) of a slot; nothing for a slot that is not there."""
        for segment, piece in self._where[param]:
            place = slice(piece.offset, piece.offset + piece.length)
            with self._resident(segment, slot, changed), torch.no_grad():
                if slot == GRADIENT:
                    if self._update.gradients.reduced:
                        yield piece, self._update.gradient(segment)[place]
                elif slot == WEIGHT:
                    yield piece, segment.master[place]
                    if changed:
                        self._update.owned.refresh_weights([segment])
                else:
                    yield from self._state(segment, piece, slot)

    def _state(self, segment: Segment, piece: Slice, slot: str) -> Iterator[tuple[Slice, Tensor]]:
        for part in segment.parts:
            value = self._update.owned.state(part).get(slot)
            inside = cut([piece], part.begin, part.end)
            if inside and torch.is_tensor(value) and value.numel() == part.end - part.begin:
                own = inside[0]
                yield own, value[own.offset : own.offset + own.length]

    def _resident(
        self, segment: Segment, slot: str, changed: bool
    ) -> AbstractContextManager[object]:
        if slot == GRADIENT:
            return nullcontext()
        return self._update.owned.resident(segment, changed=changed)


def _no_access() -> None:
    """What a pickle has in place of an `Access`."""
