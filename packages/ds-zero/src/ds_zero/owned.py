"""The optimizer's side of a rank's shares: masters, moments, and the step over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ds_core.contracts import FlatStep, Pending
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


class OwnedState:
    """Steps an optimizer over segments.

    Args:
        segments: in the order of the optimizer's groups' parameters.
        optimizer: its groups hold the parameters of the segments' parts.
        flat_step: updates a run in one pass, in place of the optimizer's own `step`; it reads
            the options of the groups and keeps its moments in `optimizer.state`.
        residence: where the state lies between steps.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        optimizer: torch.optim.Optimizer,
        *,
        flat_step: FlatStep | None = None,
        residence: Residence | None = None,
    ) -> None:
        self.segments = list(segments)
        self.optimizer = optimizer
        self.flat_step = flat_step
        self.residence: Residence = residence or InMemory()
        self.residence.begin(optimizer)
        self._swaps = residence is not None
        if self._swaps and optimizer.state:
            for segment in self.segments:  # state that the optimizer came with
                with self.resident(segment, changed=True):
                    pass

    def step(
        self,
        gradient: Callable[[Segment], Tensor],
        *,
        unused: frozenset[nn.Parameter] | set[nn.Parameter],
        factor: float,
    ) -> None:
        """Update every used parameter's elements; gradients are multiplied by `factor` first."""
        if unused:
            self._set_apart(unused)
        if self._swaps:
            self._step_by_segment(gradient, unused, factor)
        else:
            self._update(self.segments, gradient, unused, factor)
            self.refresh_weights([s for s in self.segments if not self._writes_weights(s)])

    def refresh_weights(self, segments: Sequence[Segment]) -> None:
        """Write masters, rounded, into the weights."""
        kept = [segment for segment in segments if segment.is_master and segment.numel]
        if kept:
            with torch.no_grad():
                torch._foreach_copy_([s.weights for s in kept], [s.master for s in kept])

    @contextmanager
    def resident(self, segment: Segment, *, changed: bool = False) -> Iterator[Segment]:
        """Inside, the segment's master and moments are in memory."""
        self.residence.enter(segment)
        try:
            yield segment
        finally:
            self.residence.leave(segment, changed=changed)
            self.residence.drain()

    def state(self, part: Part) -> dict[str, Any]:
        """The optimizer's state of a part; empty before its first step."""
        found: dict[str, Any] = self.optimizer.state.get(part.param, {})
        return found

    def cut_at(self, segment: Segment, points: set[int]) -> None:
        """Make sure that no part runs across any of `points` (offsets in the segment)."""
        parts: list[Part] = []
        for part in segment.parts:
            inner = sorted(p for p in points if part.begin < p < part.end)
            if not inner:
                parts.append(part)
                continue
            edges = [part.begin, *inner, part.end]
            parts += self._divide(segment, part, list(pairwise(edges)))
        segment.parts = parts

    def _divide(self, segment: Segment, part: Part, runs: list[tuple[int, int]]) -> list[Part]:
        group = self.optimizer.param_groups[segment.unit.group]
        position = next(i for i, p in enumerate(group["params"]) if p is part.param)
        state = self.optimizer.state.pop(part.param, None)
        found = []
        for begin, end in runs:
            low, high = begin - part.begin, end - part.begin
            data = part.param.detach()[low:high] if part.param.numel() else part.param.detach()
            new = Part(begin, end, nn.Parameter(data))
            if state is not None:
                self.optimizer.state[new.param] = {
                    key: _cut_state(value, part, low, high) for key, value in state.items()
                }
            found.append(new)
        group["params"][position : position + 1] = [new.param for new in found]
        return found

    def _set_apart(self, unused: frozenset[nn.Parameter] | set[nn.Parameter]) -> None:
        for segment in self.segments:
            params = segment.unit.params
            edges: set[int] = set()
            for piece in segment.slices:
                if params[piece.index] in unused:
                    edges |= {piece.offset, piece.offset + piece.length}
            if edges and self._swaps:
                with self.resident(segment, changed=True):
                    self.cut_at(segment, edges)
            elif edges:
                self.cut_at(segment, edges)

    def _step_by_segment(
        self,
        gradient: Callable[[Segment], Tensor],
        unused: frozenset[nn.Parameter] | set[nn.Parameter],
        factor: float,
    ) -> None:
        segments = [segment for segment in self.segments if segment.numel]
        if segments:
            self.residence.prefetch(segments[0])
        for segment, following in zip(segments, [*segments[1:], None], strict=True):
            self.residence.enter(segment)
            if following is not None:
                self.residence.prefetch(following)
            self._update([segment], gradient, unused, factor)
            if not self._writes_weights(segment):
                self.refresh_weights([segment])
            self.residence.leave(segment, changed=True)
        self.residence.drain()

    def _update(
        self,
        segments: Sequence[Segment],
        gradient: Callable[[Segment], Tensor],
        unused: frozenset[nn.Parameter] | set[nn.Parameter],
        factor: float,
    ) -> None:
        work: list[Pending] = []
        left: list[tuple[Part, Tensor]] = []
        for segment in segments:
            if not segment.numel:
                continue
            grad = gradient(segment).to(segment.master.device, segment.master.dtype)
            for part in segment.parts:
                if not _is_used(segment, part, unused):
                    continue
                run = grad[part.begin : part.end]
                if self._is_flat(segment):
                    work.append(self._launch(segment, part, run, factor))
                else:
                    left.append((part, run))
        if left:
            self._optimizer_step(left, factor)
        for pending in work:
            pending.wait()

    def _optimizer_step(self, runs: list[tuple[Part, Tensor]], factor: float) -> None:
        if factor != 1.0:
            torch._foreach_mul_([grad for _, grad in runs], factor)
        for part, grad in runs:
            part.param.grad = grad
        self.optimizer.step()
        for part, _ in runs:
            part.param.grad = None

    def _launch(self, segment: Segment, part: Part, grad: Tensor, factor: float) -> Pending:
        flat_step = self.flat_step
        assert flat_step is not None
        state = self.optimizer.state[part.param]
        master = segment.master[part.begin : part.end]
        if "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            for name in flat_step.state_names:
                state[name] = torch.zeros_like(master)
        state["step"] += 1
        out = None
        if segment.is_master and self._writes_weights(segment):
            out = segment.weights[part.begin : part.end]
        return flat_step(
            master,
            grad,
            {name: state[name] for name in flat_step.state_names},
            out=out,
            hyper=self.optimizer.param_groups[segment.unit.group],
            step=int(state["step"]),
            grad_scale=factor,
        )

    def _is_flat(self, segment: Segment) -> bool:
        master = segment.master
        on_host = master.device.type == "cpu" and master.dtype == torch.float32
        return self.flat_step is not None and on_host

    def _writes_weights(self, segment: Segment) -> bool:
        """Whether the one-pass step also writes the weights, rounded."""
        return self._is_flat(segment) and segment.weights.device.type == "cpu"


def _is_used(
    segment: Segment, part: Part, unused: frozenset[nn.Parameter] | set[nn.Parameter]
) -> bool:
    if not unused:
        return True
    params = segment.unit.params
    inside = cut(segment.slices, part.begin, part.end)
    return any(params[piece.index] not in unused for piece in inside)


def _cut_state(value: Any, part: Part, low: int, high: int) -> Any:
    if not torch.is_tensor(value):
        return value
    if value.numel() == part.end - part.begin and value.dim() == 1:
        return value[low:high]
    return value.clone()


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
