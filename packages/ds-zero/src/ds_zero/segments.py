"""Runs of a rank's share, and the parameters through which an optimizer sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ds_zero.plan import Slice, cut
from ds_zero.units import Unit


@dataclass(eq=False)
class Part:
    """A run of a segment that the optimizer sees as one parameter."""

    begin: int
    end: int
    param: nn.Parameter


@dataclass(eq=False)
class Segment:
    """A run of one unit's share that is stepped, moved and stored as a whole.

    Attributes:
        key: unique in the engine and safe as a file name.
        begin, end: place in the unit's share.
        weights: that part of the share, in the format and on the device of the parameters.
        slices: which elements of which of the unit's parameters they are.
        master: what the optimizer updates: `weights` itself, or an fp32 or host copy. Empty while
            it is swapped out.
        parts: the runs the optimizer knows; more than one once parameters differ in their steps.
    """

    key: str
    unit: Unit
    begin: int
    end: int
    weights: Tensor
    slices: tuple[Slice, ...]
    master: Tensor
    parts: list[Part] = field(default_factory=list)

    @property
    def numel(self) -> int:
        return self.end - self.begin

    @property
    def is_master(self) -> bool:
        """True if the master is a memory of its own."""
        return self.master is not self.weights


class Residence(Protocol):
    """Where masters and moments lie between steps."""

    def admit(self, segment: Segment) -> None:
        """Take over the master of a new segment, before the optimizer exists."""

    def begin(self, optimizer: torch.optim.Optimizer) -> None:
        """Learn whose state the moments are."""

    def prefetch(self, segment: Segment) -> None:
        """Start bringing the segment in."""

    def enter(self, segment: Segment) -> None:
        """Return once master and moments are in memory and bound."""

    def leave(self, segment: Segment, *, changed: bool) -> None:
        """They may go; written out first if they changed."""

    def drain(self) -> None:
        """Return once nothing is in flight."""

    def close(self) -> None:
        """Bring nothing back, free everything."""


class InMemory:
    """The residence of what never leaves memory."""

    def admit(self, segment: Segment) -> None: ...

    def begin(self, optimizer: torch.optim.Optimizer) -> None: ...

    def prefetch(self, segment: Segment) -> None: ...

    def enter(self, segment: Segment) -> None: ...

    def leave(self, segment: Segment, *, changed: bool) -> None: ...

    def drain(self) -> None: ...

    def close(self) -> None: ...


def make_segments(
    units: Sequence[Unit],
    *,
    limit: int,
    master: Callable[[Unit, int, int], tuple[Tensor, bool]],
    residence: Residence,
) -> list[Segment]:
    """Cut each unit's share into runs of at most `limit` elements, ends aligned.

    Args:
        master: `master(unit, begin, end)` makes what the optimizer updates for a run (the run of
            `unit.weights` itself where no copy is needed), and says whether it leaves memory.
        residence: takes each master over at once, so that not all are in memory together.
    """
    segments = []
    for unit in units:
        for begin in range(0, max(unit.share, 1), max(limit, 1)):
            end = min(begin + limit, unit.share)
            weights = unit.weights[begin:end]
            own, leaves = master(unit, begin, end)
            is_same = own.data_ptr() == weights.data_ptr() and own.dtype == weights.dtype
            segment = Segment(
                key=f"unit{unit.index}-{begin}",
                unit=unit,
                begin=begin,
                end=end,
                weights=weights,
                slices=cut(unit.slices, begin, end),
                master=weights if is_same else own,
            )
            if leaves:
                residence.admit(segment)
            segments.append(segment)
    return segments


def point_optimizer(
    groups: Sequence[Mapping[str, Any]],
    segments: Sequence[Segment],
    optimizer: torch.optim.Optimizer | Callable[[list[dict[str, Any]]], torch.optim.Optimizer],
) -> torch.optim.Optimizer:
    """Give an optimizer (kept in place) or a factory the parts of `segments` to update.

    State that a kept optimizer already has goes along.
    """
    is_object = isinstance(optimizer, torch.optim.Optimizer)
    old = dict(optimizer.state) if isinstance(optimizer, torch.optim.Optimizer) else {}
    params: list[list[nn.Parameter]] = [[] for _ in groups]
    for segment in segments:
        points = {0, segment.numel}
        if old:
            points |= {piece.offset for piece in segment.slices}
        edges = sorted(points)
        for begin, end in pairwise(edges):
            part = Part(begin, end, nn.Parameter(segment.master[begin:end]))
            segment.parts.append(part)
            params[segment.unit.group].append(part.param)
    if not is_object:
        return optimizer(  # type: ignore[operator]
            [{**group, "params": own} for group, own in zip(groups, params, strict=True)]
        )
    assert isinstance(optimizer, torch.optim.Optimizer)
    for group, own in zip(optimizer.param_groups, params, strict=True):
        group["params"] = own
        group.pop("param_names", None)
    optimizer.state.clear()
    if old:
        _carry_over(optimizer, segments, old)
    return optimizer


def _carry_over(
    optimizer: torch.optim.Optimizer, segments: Sequence[Segment], old: Mapping[Any, Any]
) -> None:
    for segment in segments:
        for part in segment.parts:
            for piece in cut(segment.slices, part.begin, part.end):
                param, fact = segment.unit.params[piece.index], segment.unit.facts[piece.index]
                state = old.get(param)
                if not state:
                    continue
                optimizer.state[part.param] = {
                    key: _share_of(value, fact.shape, piece, part) for key, value in state.items()
                }


def _share_of(value: Any, shape: torch.Size, piece: Slice, part: Part) -> Any:
    if not torch.is_tensor(value) or value.shape != shape or value.dim() == 0:
        return value.clone() if torch.is_tensor(value) else value
    own = torch.zeros(part.end - part.begin, dtype=value.dtype, device=part.param.device)
    own[: piece.length] = value.reshape(-1)[piece.start : piece.start + piece.length]
    return own
