"""The optimizer's side of a rank's shares: masters, moments, and the step over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from ds_core.contracts import FlatStep, Pending
from ds_zero.plan import cut
from ds_zero.segments import InMemory, Part, Residence, Segment


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
