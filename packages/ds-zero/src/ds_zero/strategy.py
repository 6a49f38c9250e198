"""What stages 1, 2 and 3 have in common: one step over sharded gradients and masters."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ds_core.contracts import Divisor, FlatStep, StepReport
from ds_core.errors import StateError
from ds_core.gate import StepGate
from ds_core.groups import Groups
from ds_core.naming import FrozenParams, ParameterNames
from ds_core.optimizers import MakeOptimizer
from ds_core.precision import PrecisionSettings
from ds_core.reduction import RootScale, is_model_parallel
from ds_zero.gradients import ShardedGradients
from ds_zero.memory import memory_for
from ds_zero.owned import OwnedState
from ds_zero.plan import Slice, cut
from ds_zero.segments import InMemory, Residence, Segment, make_segments, point_optimizer
from ds_zero.units import Fact, Unit, needs_master

_MORE_ROOM = (
    'put it on a disk with zero_optimization.offload_optimizer {"device": "nvme", "nvme_path": '
    "FOLDER} and a small sub_group_size, or shard it over more ranks"
)
_CACHED, _LAUNCHED = 1 << 16, 1 << 24
"""Elements of a piece of a norm: such that its fp64 copy is small for the device."""


@dataclass(frozen=True)
class Setup:
    """What a strategy is built from.

    Attributes:
        module: on its device and in its compute format.
        param_groups: groups of the module's parameters.
        optimizer: an optimizer object over these, or a factory that is given groups of what is
            updated.
        groups: the process groups.
        precision: formats.
        originals: fp32 values from before the module was cast.
        max_norm: clip the global gradient norm to this; 0 does not clip.
        predivide: divide gradients by this before they are summed, by the rest afterwards.
        flat_step: one-pass update on the CPU that equals the optimizer's, where there is one.
    """

    module: nn.Module
    param_groups: list[dict[str, Any]]
    optimizer: torch.optim.Optimizer | MakeOptimizer
    groups: Groups
    precision: PrecisionSettings
    originals: Mapping[nn.Parameter, Tensor] = field(default_factory=dict)
    max_norm: float = 0.0
    predivide: float | None = None
    flat_step: FlatStep | None = None


@dataclass(frozen=True)
class Offload:
    """Where masters and moments lie.

    Attributes:
        part: fraction of them that lies on the host, from the first unit on.
        pin_memory: page-lock that memory.
        residence: makes what brings them to memory for a step; None keeps everything there.
        swaps: masters and moments leave memory (else only weights do).
    """

    part: float = 0.0
    pin_memory: bool = False
    residence: Callable[[], Residence] | None = None
    swaps: bool = True


def parameter_facts(
    module: nn.Module, shape: Callable[[nn.Parameter], torch.Size]
) -> dict[nn.Parameter, Fact]:
    """The table of all parameters of `module`, in order of registration."""
    names = ParameterNames(module)
    return {
        param: Fact(name, names.aliases[param], shape(param), index)
        for index, (param, name) in enumerate(names.names.items())
    }


class ShardedUpdate:
    """The step of a sharded strategy: backward passes in, updated shares out.

    Args:
        setup: what the strategy is built from.
        facts: all parameters.
        units: the trained ones, whose `weights` are bound.
        gradients: collects and reduces.
        segment_limit: most elements stepped at once.
        offload: where masters and moments lie.
        require_used: a parameter that no rank used is an error.
        original: the fp32 values of a slice from before they were rounded, where still known.
    """

    def __init__(
        self,
        setup: Setup,
        facts: Mapping[nn.Parameter, Fact],
        units: Sequence[Unit],
        gradients: ShardedGradients,
        *,
        segment_limit: int,
        offload: Offload,
        require_used: bool = False,
        original: Callable[[Unit, Slice], Tensor | None] | None = None,
    ) -> None:
        self.gradients, self.units, self.facts = gradients, units, facts
        self._groups, self._require_used = setup.groups, require_used
        self._unscaled = 1.0
        self._frozen = FrozenParams(setup.param_groups, ParameterNames(setup.module))
        self.gate = StepGate(setup.precision.make_scaler(), max_norm=setup.max_norm)
        self._root = RootScale(
            self.gate.scaler, world_size=setup.groups.data.world_size, predivide=setup.predivide
        )
        self._params = [param for unit in units for param in unit.params]
        residence = offload.residence() if offload.residence is not None else None
        masters = _Masters(setup, units, offload, original or no_originals)
        with memory_for("the fp32 weights that the optimizer updates", remedy=_MORE_ROOM):
            segments = make_segments(
                units, limit=segment_limit, master=masters.make, residence=residence or InMemory()
            )
        self.group_names = [
            [facts[p].name if p in facts else "?" for p in group["params"]]
            for group in setup.param_groups
        ]
        optimizer = point_optimizer(setup.param_groups, segments, setup.optimizer)
        self.owned = OwnedState(segments, optimizer, flat_step=setup.flat_step, residence=residence)

    def backward(
        self, loss: Tensor, *, sync: bool, divisor: Divisor, retain_graph: bool = False
    ) -> None:
        """Back-propagate, reduce as the stage does; with `sync` close the window."""
        root = self._root.for_pass(loss, divisor.root)
        self.gradients.begin_pass(loss, sync=sync)
        try:
            torch.autograd.backward(loss, root, retain_graph=retain_graph)
        except BaseException:
            self.clear()
            raise
        self.gradients.end_pass()
        if sync:
            self._finish(divisor)

    def step(self, *, divisor: Divisor) -> StepReport:
        """Measure, clip, update the shares this rank owns."""
        self._frozen.check()
        if not self.gradients.reduced or self.gradients.dirty:
            self._finish(divisor)
        norm, unused = self._measure()
        factor, report = self.gate.admit(norm, self._nonfinite)
        if not report.skipped:
            if unused and self._require_used:
                names = ", ".join(sorted(self.facts[param].name for param in unused))
                raise StateError(
                    f"no rank used: {names}. Freeze them, or set "
                    "zero_optimization.ignore_unused_parameters to true"
                )
            with memory_for("the optimizer's state", remedy=_MORE_ROOM):
                self.owned.step(self.gradient, unused=unused, factor=factor)
        self.clear()
        return report

    def clear(self) -> None:
        """Forget the open window."""
        for param in self._params:
            param.grad = None
        self.gradients.clear()
        self._root.reset()

    def gradient(self, segment: Segment) -> Tensor:
        """This rank's summed gradients of a segment, in the accumulation format."""
        return self.gradients.share(segment.unit)[segment.begin : segment.end]

    def _finish(self, divisor: Divisor) -> None:
        self._unscaled = self._root.missing(divisor.root)
        self.gradients.finish(self._root.remaining(divisor.mean))

    def _measure(self) -> tuple[float, set[nn.Parameter]]:
        """The norm of all gradients, and the parameters that no rank used; one message."""
        data, model = self._groups.data, self._groups.model
        shared, sharded = self._by_replication(model.world_size > 1)
        used = self.gradients.used()
        plain = bool(used) and self._unscaled != 1.0  # gradients of plain backward() calls
        numbers = [_squares(shared), _squares(sharded), float(plain)]
        numbers += [float(param in used) for param in self._params]
        box = torch.tensor(numbers, dtype=torch.float64, device=data.device)
        data.all_reduce(box, label="gradient norm").wait()
        own, split, any_plain, *flags = box.tolist()
        if any_plain:
            self._scale_plain()
            own, split = own * self._unscaled**2, split * self._unscaled**2
        unused = {param for param, flag in zip(self._params, flags, strict=True) if not flag}
        if model.world_size == 1:
            return _root(own + split), unused
        total = model.sum_number(split + (own if model.rank == 0 else 0.0), label="gradient norm")
        return _root(total), unused

    def _scale_plain(self) -> None:
        """Bring a window of plain backward() calls to the scale of the engine's own."""
        for unit in self.units:
            self.gradients.share(unit).mul_(self._unscaled)

    def _by_replication(self, cut_over_model: bool) -> tuple[list[Tensor], list[Tensor]]:
        """Shares that all ranks of the model group hold alike, and those only this one holds."""
        if not cut_over_model:
            return [self.gradients.share(unit) for unit in self.units], []
        shared: list[Tensor] = []
        sharded: list[Tensor] = []
        for unit in self.units:
            total = self.gradients.share(unit)
            for piece in unit.slices:
                own = total[piece.offset : piece.offset + piece.length]
                (sharded if is_model_parallel(unit.params[piece.index]) else shared).append(own)
        return shared, sharded

    def _nonfinite(self) -> tuple[str, ...]:
        bad: set[str] = set()
        for unit in self.units:
            total = self.gradients.share(unit)
            for piece in unit.slices:
                own = total[piece.offset : piece.offset + piece.length]
                if not torch.isfinite(own).all():
                    bad.add(unit.facts[piece.index].name)
        every = set().union(*self._groups.data.all_gather_object(bad))
        return tuple(fact.name for fact in self.facts.values() if fact.name in every)


def _squares(tensors: Sequence[Tensor]) -> float:
    """Sum of squares in fp64, so that its rounding does not depend on how shares are cut.

    Taken in pieces: what is converted to fp64 lies in a cache, not in a copy of the gradients.
    """
    norms = [
        torch.linalg.vector_norm(piece, dtype=torch.float64)
        for tensor in tensors
        for piece in torch.split(tensor, _CACHED if tensor.device.type == "cpu" else _LAUNCHED)
    ]
    return float(torch.stack(norms).square().sum()) if norms else 0.0


def _root(square: float) -> float:
    """The square root, rounded to fp32 so that it does not show how the sum was split up."""
    return float(torch.tensor(square, dtype=torch.float64).sqrt().to(torch.float32))


class _Masters:
    """Makes what the optimizer updates for each run of a unit's share."""

    def __init__(
        self,
        setup: Setup,
        units: Sequence[Unit],
        offload: Offload,
        original: Callable[[Unit, Slice], Tensor | None],
    ) -> None:
        self._setup, self._offload, self._original = setup, offload, original
        self._left = math.ceil(sum(unit.share for unit in units) * offload.part)

    def make(self, unit: Unit, begin: int, end: int) -> tuple[Tensor, bool]:
        """What the optimizer updates, and whether it leaves memory between steps."""
        weights = unit.weights[begin:end]
        on_host = self._left > 0
        self._left -= (end - begin) if on_host else 0
        leaves = on_host and self._offload.residence is not None and self._offload.swaps
        moves = leaves or unit.weights_leave or (on_host and unit.device.type != "cpu")
        wants_fp32 = needs_master(unit.dtype, self._setup.precision)
        if not moves and not wants_fp32:
            return weights, False
        dtype = torch.float32 if wants_fp32 else unit.dtype
        device = torch.device("cpu") if on_host else unit.device
        pin = self._offload.pin_memory and on_host and torch.accelerator.is_available()
        own = torch.empty(end - begin, dtype=dtype, device=device, pin_memory=pin)
        own.copy_(weights)
        for piece in cut(unit.slices, begin, end):
            original = self._original(unit, piece)
            if original is not None:
                own[piece.offset : piece.offset + piece.length].copy_(original)
        return own, leaves


def no_originals(_unit: Unit, _piece: Slice) -> None:
    """Masters start from the parameters as they are."""
    return None
