"""Gradients on their way from autograd into each rank's share of their sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ds_core.contracts import Pending
from ds_core.errors import StateError
from ds_zero.exchange import Exchange
from ds_zero.plan import share
from ds_zero.units import Unit


class Place:
    """Where one parameter's gradient lies in the flat memory of its unit.

    Laid end to end, the unit's memory is the tensors one after the other. Laid one by one, it has
    a row a rank, and a tensor is a column range of all rows.
    """

    def __init__(self, unit: Unit, position: int, offset: int, *, rows: int) -> None:
        self.unit, self.position = unit, position
        self._fact = unit.facts[position]
        self._offset, self._rows = offset, rows
        self._width = share(self._fact.numel, rows) if rows else 0

    def copy(self, flat: Tensor, grad: Tensor) -> None:
        """Write `grad` to its place in `flat`, and zeros to the padding there."""
        for target, source in self._parts(flat, grad):
            target.copy_(source)
        if self._fact.numel < self._rows * self._width:
            full, rest = divmod(self._fact.numel, self._width)
            columns = flat.view(self._rows, -1)[full:, self._offset : self._offset + self._width]
            columns[0, rest:].zero_()
            columns[1:].zero_()

    def add(self, flat: Tensor, grad: Tensor) -> None:
        """Add `grad` to its place in `flat`."""
        for target, source in self._parts(flat, grad):
            target.add_(source)

    def zero(self, flat: Tensor) -> None:
        """Clear the place in `flat`."""
        if not self._rows:
            flat[self._offset : self._offset + self._fact.numel].zero_()
            return
        flat.view(self._rows, -1)[:, self._offset : self._offset + self._width].zero_()

    def _parts(self, flat: Tensor, grad: Tensor) -> list[tuple[Tensor, Tensor]]:
        numel, width = self._fact.numel, self._width
        if not self._rows:
            target = flat[self._offset : self._offset + numel]
            return [(target.view(grad.shape), grad)]
        source = grad.reshape(-1)
        columns = flat.view(self._rows, -1)[:, self._offset : self._offset + width]
        full, rest = divmod(numel, width) if width else (0, 0)
        parts = []
        if full:
            parts.append((columns[:full], source[: full * width].view(full, width)))
        if rest:
            parts.append((columns[full, :rest], source[full * width :]))
        return parts


def may_nest(loss: Tensor) -> bool:
    """Whether a backward pass from `loss` may run others inside, as reentrant checkpoints do."""
    seen: set[Any] = set()
    left = [loss.grad_fn]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            return True  # written in Python: it may do anything
        seen.add(node)
        left += [following for following, _ in node.next_functions]
    return False


class _Flow:
    """The state of one unit within the window."""

    __slots__ = ("arrived", "flat", "message", "missing", "sum", "summed", "work")

    def __init__(self) -> None:
        self.flat: Tensor | None = None  # whole gradients, on their way
        self.message: Tensor | None = None  # what is reduced: `flat`, or a rounded copy
        self.arrived: set[int] = set()  # positions that have written to `flat`
        self.missing = 0  # parameters still awaited in this pass
        self.work: Pending | None = None
        self.sum: Tensor | None = None  # this rank's share of what was reduced in the window
        self.summed = False


class ShardedGradients:
    """Collects gradients by unit, reduces each unit to its owners, in one order on all ranks.

    Args:
        units: in order of reduction.
        exchange: the group.
        rows: world size for the one-by-one layout, 0 for end to end.
        every_pass: reduce in every backward pass and keep shares only (stages 2, 3); else keep
            whole sums over the window and reduce in its last pass (stage 1).
        overlap: reduce while backward runs.
        early_copy: copy a gradient to its unit as it arrives; else when the unit is complete.
        message_dtype: format to reduce in; None is the accumulation format.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        exchange: Exchange,
        *,
        rows: int = 0,
        every_pass: bool,
        overlap: bool = True,
        early_copy: bool = True,
        message_dtype: torch.dtype | None = None,
    ) -> None:
        self.units, self._exchange = units, exchange
        self._every_pass = every_pass and exchange.world_size > 1
        self._overlap, self._early = overlap, early_copy
        self._message_dtype = message_dtype
        self._flows = {unit: _Flow() for unit in units}
        self._place: dict[nn.Parameter, Place] = {}
        for unit in units:
            offset = 0
            for position, (param, fact) in enumerate(zip(unit.params, unit.facts, strict=True)):
                self._place[param] = Place(unit, position, offset, rows=rows)
                offset += share(fact.numel, rows) if rows else fact.numel
        self._used: set[nn.Parameter] = set()
        self._held: dict[nn.Parameter, Tensor] = {}
        self._fired: dict[nn.Parameter, int] = {}
        self._expected: dict[nn.Parameter, int] | None = None
        self._next = len(units)
        self._active = self._round_done = False
        self._factor = 1.0
        self.reduced = False
        self.dirty = False

    def begin_pass(self, loss: Tensor, *, sync: bool) -> None:
        """A backward pass from `loss` starts; with `sync` it is the window's last.

        Where a parameter may fire several times in a pass, the first pass counts how often, and
        reduces when it is over; that takes memory for all gradients once.
        """
        if self.reduced:
            self._undo_reduction()
        if self._expected is None and not may_nest(loss):
            self._expected = {}
        self._active = sync or self._every_pass
        if self._active:
            self._begin_round()

    def arrived(self, param: nn.Parameter, grad: Tensor) -> None:
        """Autograd has summed up `param`'s gradient of this pass; the caller lets go of it."""
        if self.reduced:
            raise StateError(
                f"'{self._fact(param)}' got a gradient from a plain backward() after the "
                "engine's backward() had closed the window; call step() first, or use "
                "engine.backward() for both"
            )
        place = self._place[param]
        flow = self._flows[place.unit]
        if self._active and place.unit.index < self._next:
            raise StateError(
                f"gradient of '{self._fact(param)}' arrived again after it was reduced: it is "
                "used more often in this step than in the first one, under reentrant activation "
                "checkpointing. Use use_reentrant=False, or switch overlap_comm off"
            )
        self._used.add(param)
        if self._early or not self._active:
            self._put(place, flow, grad)
        elif param in self._held:
            self._held[param] = self._held[param] + grad
        else:
            self._held[param] = grad
        if self._active:
            self._count(param, flow)
        else:
            self.dirty = True

    def end_pass(self) -> None:
        """The backward pass is over: what every rank reduces in each pass is on its way."""
        if self._active:
            self._learn_counts()
            self._launch_rest()
            self._active, self.dirty, self._round_done = False, False, True
        if self._every_pass:
            for unit in self.units:
                self._settle(unit)

    def skip_pass(self) -> None:
        """A micro-batch without a pass of ours: reduce what there is, as the other ranks did."""
        if not self._every_pass:
            return
        if self.reduced:
            self._undo_reduction()
        self._begin_round()
        self._active = True
        self.end_pass()

    def finish(self, factor: float) -> None:
        """Close the window: reduce what is left, wait, multiply this rank's sums by `factor`."""
        if self.dirty or not self._round_done:
            self._begin_round()
            self._launch_rest()
        for unit in self.units:
            self._settle(unit)
            if factor != 1.0:
                self.share(unit).mul_(factor)
        self._factor = factor
        self._active, self.reduced, self.dirty, self._round_done = False, True, False, True

    def share(self, unit: Unit) -> Tensor:
        """This rank's share of the summed gradients of `unit`; valid after `finish`."""
        total = self._flows[unit].sum
        assert total is not None
        return total

    def used(self) -> set[nn.Parameter]:
        """Parameters with a gradient on this rank in the window."""
        return self._used

    def __contains__(self, param: object) -> bool:
        return param in self._place

    def clear(self) -> None:
        """Forget the window; memory of stage 1 stays for the next."""
        self._used.clear()
        self._held.clear()
        for flow in self._flows.values():
            flow.work = flow.message = None
            flow.summed = False
            flow.arrived.clear()
            if self._every_pass:
                flow.flat = None
        self._next = len(self.units)
        self._active = self.reduced = self.dirty = self._round_done = False

    def release(self) -> None:
        """Let go of all memory."""
        self.clear()
        for flow in self._flows.values():
            flow.flat = flow.sum = None

    def _fact(self, param: nn.Parameter) -> str:
        place = self._place[param]
        return place.unit.facts[place.position].name

    def _begin_round(self) -> None:
        self._fired.clear()
        self._next = 0
        for unit in self.units:
            self._flows[unit].missing = len(unit.params)

    def _put(self, place: Place, flow: _Flow, grad: Tensor) -> None:
        flat = self._flat(place.unit, flow)
        if place.position in flow.arrived:
            place.add(flat, grad)
        else:
            place.copy(flat, grad)
            flow.arrived.add(place.position)

    def _flat(self, unit: Unit, flow: _Flow) -> Tensor:
        if flow.flat is None:
            size = unit.share * self._exchange.world_size
            flow.flat = torch.empty(size, dtype=unit.accumulate, device=unit.device)
            flow.flat[sum(fact.numel for fact in unit.facts) :].zero_()  # padding, laid end to end
        return flow.flat

    def _count(self, param: nn.Parameter, flow: _Flow) -> None:
        fired = self._fired.get(param, 0) + 1
        self._fired[param] = fired
        if not self._overlap or self._expected is None:
            return
        if fired == self._expected.get(param, 1):
            flow.missing -= 1
        while self._next < len(self.units) and self._flows[self.units[self._next]].missing == 0:
            self._launch()

    def _learn_counts(self) -> None:
        """Remember who fires more than once a pass: parameters under reentrant checkpointing."""
        if self._expected is None:
            self._expected = {}
        for param, fired in self._fired.items():
            if fired > self._expected.get(param, 1):
                self._expected[param] = fired

    def _launch_rest(self) -> None:
        while self._next < len(self.units):
            self._launch()

    def _launch(self) -> None:
        unit = self.units[self._next]
        self._next += 1
        flow = self._flows[unit]
        for param in unit.params:
            if param in self._held:
                self._put(self._place[param], flow, self._held.pop(param))
        flat = self._flat(unit, flow)
        for position, param in enumerate(unit.params):
            if position not in flow.arrived:
                self._place[param].zero(flat)
        flow.arrived.clear()
        flow.message = flat if self._message_dtype is None else flat.to(self._message_dtype)
        label = f"gradients of {unit.label}"
        flow.work = self._exchange.reduce_scatter(flow.message, label=label)
        if not self._overlap:
            self._settle(unit)
        elif self._next >= 2:
            self._settle(self.units[self._next - 2])  # at most two units are in flight

    def _settle(self, unit: Unit) -> None:
        """Take the share out of a reduced unit."""
        flow = self._flows[unit]
        if flow.work is None or flow.message is None:
            return
        flow.work.wait()
        own = flow.message.view(self._exchange.world_size, -1)[self._exchange.rank]
        flow.work = flow.message = None
        if self._every_pass:
            self._accumulate(flow, own.to(unit.accumulate))
            flow.flat = None
        else:
            flow.sum = own.to(unit.accumulate)
            flow.summed = True

    def _accumulate(self, flow: _Flow, own: Tensor) -> None:
        if flow.summed and flow.sum is not None:
            flow.sum.add_(own)
        elif flow.sum is not None:
            flow.sum.copy_(own)
        else:
            flow.sum = own.clone()
        flow.summed = True

    def _undo_reduction(self) -> None:
        """A pass follows a closed window: let its sums count once when they are summed again."""
        world = self._exchange.world_size
        self.reduced = self._round_done = False
        for unit in self.units:
            if self._factor != 1.0:
                self.share(unit).div_(self._factor)
        if self._every_pass:
            return  # shares go on accumulating
        for unit in self.units:
            flow = self._flows[unit]
            flat = self._flat(unit, flow)
            own = self.share(unit).clone()
            flat.zero_()
            flat.view(world, -1)[self._exchange.rank].copy_(own)
            flow.summed = False
            flow.arrived = set(range(len(unit.params)))
