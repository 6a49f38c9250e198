"""Stages 1 and 2: whole weights everywhere, optimizer state and gradients in shares."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ds_core.contracts import WEIGHT, Divisor, LoadWhat, ShardReader, StepReport, TensorShard
from ds_core.edits import edits_of
from ds_core.naming import ParameterNames, named_buffers
from ds_core.replicated import broadcast_module
from ds_zero.access import Access
from ds_zero.exchange import Exchange
from ds_zero.gradients import ShardedGradients
from ds_zero.plan import Slice, bucket_limit
from ds_zero.safe import hide_access, show_access
from ds_zero.state import Loader, group_facts, owned_shards, whole_shards
from ds_zero.states import StateMover
from ds_zero.strategy import Offload, Setup, ShardedUpdate, parameter_facts
from ds_zero.units import Unit, end_to_end, make_units, trained


@dataclass(frozen=True)
class ShardedSettings:
    """How gradients and weights travel; none of these changes a result.

    Attributes:
        shard_gradients: keep only this rank's share of gradients between backward passes, and
            reduce in every pass (stage 2); else accumulate whole ones, reduce once (stage 1).
        bucket_elements: most elements reduced at once.
        gather_elements: most elements of one gathering collective; 0 sets no limit.
        overlap: reduce while backward runs.
        reduce_scatter, all_gather: see `Exchange`.
        early_copy: copy gradients to their bucket as they arrive.
        deal: deal large and small tensors to buckets in turn.
        step_elements: most elements stepped at once.
        require_used: a parameter that no rank used is an error.
    """

    shard_gradients: bool = False
    bucket_elements: int = 500_000_000
    gather_elements: int = 0
    overlap: bool = True
    reduce_scatter: bool = True
    all_gather: bool = True
    early_copy: bool = True
    deal: bool = False
    step_elements: int = 1_000_000_000
    require_used: bool = False
    round_weights: bool = False
    offload: Offload = field(default_factory=Offload)


class Sharded:
    """An `UpdateStrategy` that shards optimizer state, and gradients if told to.

    Weights of a unit are views into one flat memory, of which each rank updates its share; the
    shares are then gathered in place.
    """

    def __init__(self, setup: Setup, settings: ShardedSettings | None = None) -> None:
        settings = settings or ShardedSettings()
        self._module, self._comm = setup.module, setup.groups.data
        self._round_weights = settings.round_weights
        broadcast_module(setup.module, setup.groups)
        self._names = ParameterNames(setup.module)
        self._facts = parameter_facts(setup.module, lambda param: param.shape)
        total = sum(self._facts[p].numel for p in trained(setup.param_groups) if p in self._facts)
        self._units = make_units(
            setup.param_groups,
            self._facts,
            rank=self._comm.rank,
            world=self._comm.world_size,
            limit=bucket_limit(settings.bucket_elements, total),
            layout=end_to_end,
            precision=setup.precision,
            deal=settings.deal,
        )
        self._exchange = Exchange(
            self._comm,
            reduce_scatter=settings.reduce_scatter,
            all_gather=settings.all_gather,
            limit=settings.gather_elements,
        )
        self._flat = {unit: self._flatten(unit) for unit in self._units}
        for original in (setup.originals[p] for p in self._facts if p in setup.originals):
            # Ranks may have been seeded differently.
            self._comm.broadcast(original, 0, label="values before rounding").wait()
        gradients = ShardedGradients(
            self._units,
            self._exchange,
            every_pass=settings.shard_gradients,
            overlap=settings.overlap,
            early_copy=settings.early_copy,
            message_dtype=setup.precision.communication_dtype,
        )
        self._update = ShardedUpdate(
            setup,
            self._facts,
            self._units,
            gradients,
            segment_limit=settings.step_elements,
            offload=settings.offload,
            require_used=settings.require_used,
            original=partial(_original, setup.originals),
        )
        self.optimizer = self._update.owned.optimizer
        self.access = Access(self._update, self._comm, publish=self._gather_unit_of)
        show_access(self.access, list(self._facts))
        self._mover = StateMover(self._update, self._move_unit)
        self.offload_states = self._mover.offload
        self.reload_states = self._mover.reload
        self._handles = [
            param.register_post_accumulate_grad_hook(self._arrived)  # type: ignore[no-untyped-call]
            for unit in self._units
            for param in unit.params
        ]

    @property
    def scaler_scale(self) -> float:
        """The loss scale the next backward pass uses."""
        return self._update.gate.scaler.scale

    def held(self, param: nn.Parameter) -> Tensor:
        """The whole value that the optimizer updates for `param`; all ranks call this."""
        value = self.access.full(param, WEIGHT) if param in self.access else None
        return param.detach() if value is None else value

    @property
    def update(self) -> ShardedUpdate:
        """The step's parts, for accessors."""
        return self._update

    def backward(
        self, loss: Tensor, *, sync: bool, divisor: Divisor, retain_graph: bool = False
    ) -> None:
        self._update.backward(loss, sync=sync, divisor=divisor, retain_graph=retain_graph)

    def skip_pass(self) -> None:
        self._update.gradients.skip_pass()

    def step(self, *, divisor: Divisor) -> StepReport:
        report = self._update.step(divisor=divisor)
        if not report.skipped:
            self._gather_weights()
        return report

    def zero_grad(self) -> None:
        self._update.clear()

    @contextmanager
    def gather(
        self, params: Iterable[nn.Parameter], *, modifier_rank: int | None = None
    ) -> Iterator[None]:
        chosen = self._names.ordered(params)
        with edits_of(self._comm, chosen, modifier_rank):
            yield
        if modifier_rank is None:
            return
        for unit in self._units:
            self._put_back(unit, chosen)
        self.take_weights(set(chosen))

    def take_weights(self, params: set[nn.Parameter] | None = None) -> None:
        """Let masters start again from the present weights of `params` (of all)."""
        owned = self._update.owned
        for segment in owned.segments:
            if not segment.is_master:
                continue
            with owned.resident(segment, changed=True), torch.no_grad():
                for piece in segment.slices:
                    if params is None or segment.unit.params[piece.index] in params:
                        place = slice(piece.offset, piece.offset + piece.length)
                        segment.master[place].copy_(segment.weights[place])

    def shards(self) -> Iterable[TensorShard]:
        yield from owned_shards(self._update.owned)
        own = {param for unit in self._units for param in unit.params}
        whole = [
            (fact, param.data, not param.requires_grad)
            for param, fact in self._facts.items()
            if param not in own or fact.numel == 0
        ]
        yield from whole_shards(whole, named_buffers(self._module), self._comm)

    def facts(self) -> dict[str, Any]:
        facts = group_facts(self._update.owned, self._update.group_names, self._comm)
        return facts | {"scaler": self._update.gate.scaler.state_dict()}

    def load(self, reader: ShardReader, facts: Mapping[str, Any], *, what: LoadWhat) -> None:
        own = {param for unit in self._units for param in unit.params}
        others = {p: (fact, p.data.reshape(-1)) for p, fact in self._facts.items() if p not in own}
        frozen = [(fact, flat, 0, fact.numel) for fact, flat in others.values()]
        Loader(self._update.owned, self._facts, frozen, self._module).load(reader, facts, what)
        for param, (_, flat) in others.items():
            if flat.data_ptr() != param.data_ptr():  # it is not contiguous
                param.data.copy_(flat.view(param.shape))
        if what.weights:
            owned = self._update.owned
            for segment in owned.segments:
                with owned.resident(segment):
                    owned.refresh_weights([segment])
            self._gather_weights()
            if self._round_weights:
                self.take_weights()
        if what.optimizer and "scaler" in facts:
            self._update.gate.scaler.load_state_dict(facts["scaler"])
        self.zero_grad()

    def close(self) -> None:
        self.zero_grad()
        for handle in self._handles:
            handle.remove()
        if self._handles:
            for unit in self._units:
                for param in unit.params:
                    param.data = param.data.clone()
        self._handles = []
        hide_access(list(self._facts))
        self._flat.clear()
        self._update.gradients.release()
        self._update.owned.residence.close()

    def _arrived(self, param: nn.Parameter) -> None:
        grad = param.grad
        assert grad is not None
        param.grad = None
        self._update.gradients.arrived(param, grad.to_dense() if grad.is_sparse else grad)

    def _flatten(self, unit: Unit) -> Tensor:
        """Move the unit's parameters into one flat memory; returns it."""
        world = self._comm.world_size
        flat = torch.zeros(world * unit.share, dtype=unit.dtype, device=unit.device)
        offset = 0
        for param, fact in zip(unit.params, unit.facts, strict=True):
            place = flat[offset : offset + fact.numel].view(fact.shape)
            place.copy_(param.data)
            param.data = place
            offset += fact.numel
        unit.weights = flat.view(world, -1)[self._comm.rank] if unit.share else flat
        return flat

    def _put_back(self, unit: Unit, edited: Container[nn.Parameter]) -> None:
        """Let parameters that were given other memory (`param.data = ...`) lie in the unit's."""
        offset = 0
        for param, fact in zip(unit.params, unit.facts, strict=True):
            place = self._flat[unit][offset : offset + fact.numel].view(fact.shape)
            if param in edited and param.data_ptr() != place.data_ptr():
                place.copy_(param.data)
                param.data = place
            offset += fact.numel

    def _move_unit(self, unit: Unit, share: Tensor) -> None:
        """Let the unit's parameters lie on the device of `share`."""
        flat = self._flat[unit].to(share.device)
        self._flat[unit] = flat
        unit.weights = flat.view(self._comm.world_size, -1)[self._comm.rank]
        offset = 0
        for param, fact in zip(unit.params, unit.facts, strict=True):
            param.data = flat[offset : offset + fact.numel].view(fact.shape)
            offset += fact.numel

    def _gather_unit_of(self, param: nn.Parameter) -> None:
        for unit in self._units:
            if any(param is member for member in unit.params):
                self._exchange.all_gather(self._flat[unit], label=f"weights of {unit.label}").wait()

    def _gather_weights(self) -> None:
        pending = [
            self._exchange.all_gather(flat, label=f"weights of {unit.label}")
            for unit, flat in self._flat.items()
            if unit.share
        ]
        for work in pending:
            work.wait()


def _original(originals: Mapping[nn.Parameter, Tensor], unit: Unit, piece: Slice) -> Tensor | None:
    original = originals.get(unit.params[piece.index])
    if original is None:
        return None
    return original.detach().reshape(-1)[piece.start : piece.start + piece.length]
