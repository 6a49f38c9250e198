"""Stage 3: parameters, gradients and optimizer state all lie in shares."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ds_core.comm import Communicator
from ds_core.contracts import (
    WEIGHT,
    Divisor,
    LoadWhat,
    Pending,
    ShardReader,
    StepReport,
    TensorShard,
    TensorStore,
)
from ds_core.naming import named_buffers
from ds_zero.access import Access
from ds_zero.assist import Assistance, Key
from ds_zero.coordinator import Coordinator, Limits
from ds_zero.exchange import Exchange
from ds_zero.gathered import gathered
from ds_zero.gradients import ShardedGradients
from ds_zero.offload_face import ParameterOffload
from ds_zero.offload_weights import SwappedWeights
from ds_zero.params import (
    Shard,
    ZeroParamStatus,
    finish_gather,
    hide,
    join_gather,
    shard_of,
    start_gather,
)
from ds_zero.partition import Partition
from ds_zero.plan import bucket_limit
from ds_zero.safe import hide_access, show_access
from ds_zero.state import Loader, group_facts, owned_shards, sharded_frozen, whole_shards
from ds_zero.states import StateMover
from ds_zero.strategy import Offload, Setup, ShardedUpdate, parameter_facts
from ds_zero.units import Unit, make_units, one_by_one, trained


@dataclass(frozen=True)
class FullySettings:
    """How parameters travel; none of these changes a result.

    Attributes:
        bucket_elements: most elements of gradients reduced at once.
        overlap: reduce while backward runs.
        reduce_scatter, with_all_reduce: see `Exchange`.
        early_copy: copy gradients to their bucket as they arrive.
        step_elements: most elements stepped at once.
        persist: parameters up to this many elements stay whole between uses.
        persist_total: most elements that stay whole, all together.
        limits: how much is gathered at a time.
        check: compare each collective over all ranks before it is made (on accelerators; messages
            on the CPU are tagged with what they are anyway).
        shares_on_host: shares of parameters lie in host memory.
        pin_shares: page-lock that memory, where a device copies from it.
        weights_store: makes the store that holds shares of parameters between uses, or None.
        weights_in_memory: most elements of shares that stay in memory all the same.
        weights_piece: most elements of stored shares that a step has in one buffer.
        weights_pieces: most such buffers.
        device, dtype: where parameters compute, and in which format; None leaves them alone.
    """

    bucket_elements: int = 500_000_000
    overlap: bool = True
    reduce_scatter: bool = True
    with_all_reduce: bool = False
    early_copy: bool = True
    step_elements: int = 1_000_000_000
    persist: int = 100_000
    persist_total: int = 1 << 62
    limits: Limits = field(default_factory=Limits)
    require_used: bool = False
    round_weights: bool = False
    offload: Offload = field(default_factory=Offload)
    check: bool = False
    shares_on_host: bool = False
    pin_shares: bool = True
    weights_store: Callable[[], TensorStore] | None = None
    weights_in_memory: int = 0
    weights_piece: int = 100_000_000
    weights_pieces: int = 5
    device: torch.device | None = None
    dtype: torch.dtype | None = None


class FullySharded:
    """An `UpdateStrategy` that holds of everything a share, and gathers parameters for use."""

    def __init__(
        self,
        setup: Setup,
        settings: FullySettings | None = None,
        *,
        leaves: Iterable[nn.Module] = (),
    ) -> None:
        settings = settings or FullySettings()
        self._module, self._comm = setup.module, setup.groups.data
        self._round_weights = settings.round_weights
        self._shares_on_host, self._pin_shares = settings.shares_on_host, settings.pin_shares
        exchange = Exchange(
            _checked(self._comm) if settings.check else self._comm,
            reduce_scatter=settings.reduce_scatter,
            with_all_reduce=settings.with_all_reduce,
        )
        before = Partition(setup, exchange, device=settings.device, dtype=settings.dtype)
        self._facts = parameter_facts(setup.module, lambda param: _shard(param).shape)
        for param, fact in self._facts.items():
            shard = _shard(param)
            shard.name, shard.index, shard.exchange = fact.name, fact.index, exchange
        total = sum(self._facts[p].numel for p in trained(setup.param_groups) if p in self._facts)
        self._units = make_units(
            setup.param_groups,
            self._facts,
            rank=self._comm.rank,
            world=self._comm.world_size,
            limit=bucket_limit(settings.bucket_elements, total),
            layout=one_by_one,
            precision=setup.precision,
        )
        for unit in self._units:
            self._bind(unit)
        offload, self._swapped = self._swap_weights(settings)
        gradients = ShardedGradients(
            self._units,
            exchange,
            rows=self._comm.world_size,
            every_pass=True,
            overlap=settings.overlap,
            early_copy=settings.early_copy,
            message_dtype=setup.precision.communication_dtype,
        )
        self._update = ShardedUpdate(
            setup,
            self._facts,
            self._units,
            gradients,
            segment_limit=_segment_limit(settings),
            offload=offload,
            require_used=settings.require_used,
            original=before.original,
        )
        before.forget()
        if self._swapped is not None:
            for unit in (unit for unit in self._units if unit.weights_leave):
                self._swapped.take(unit, list(self._places(unit)))
        self.optimizer = self._update.owned.optimizer
        self.access = Access(self._update, self._comm, publish=self._weights_changed)
        show_access(self.access, list(self._facts))
        self._mover = StateMover(self._update, self._move_unit)
        self.offload_states = self._mover.offload
        self.reload_states = self._mover.reload
        _choose_kept(self._facts, settings.persist, settings.persist_total)
        self.coordinator = Coordinator(setup.module, settings.limits, leaves=leaves)
        self.parameter_offload = ParameterOffload(setup.module, self.coordinator)
        self._by_index = [_shard(param) for param in self._facts]
        if exchange.world_size > 1 and all(s.device.type == "cpu" for s in self._by_index):
            exchange.assist = Assistance(self._comm, self._join)
        self._exchange = exchange
        self._handles: list[Any] = []
        for param in self._facts:
            self._watch(param)

    @property
    def scaler_scale(self) -> float:
        """The loss scale the next backward pass uses."""
        return self._update.gate.scaler.scale

    @property
    def update(self) -> ShardedUpdate:
        """The step's parts, for accessors."""
        return self._update

    def held(self, param: nn.Parameter) -> Tensor:
        """The whole value that the optimizer updates for `param`; all ranks call this."""
        if param in self.access:
            value = self.access.full(param, WEIGHT)
            if value is not None:
                return value
        with gathered([_shard(param)]):
            return param.detach().clone()

    def backward(
        self, loss: Tensor, *, sync: bool, divisor: Divisor, retain_graph: bool = False
    ) -> None:
        self.coordinator.begin_backward()
        self._update.backward(loss, sync=sync, divisor=divisor, retain_graph=retain_graph)
        self.coordinator.end_backward()

    def skip_pass(self) -> None:
        self._update.gradients.skip_pass()

    def step(self, *, divisor: Divisor) -> StepReport:
        report = self._update.step(divisor=divisor)
        if not report.skipped:
            self.coordinator.drop_all(kept_too=True)
        return report

    def zero_grad(self) -> None:
        self._update.clear()

    def gather(
        self, params: Iterable[nn.Parameter], *, modifier_rank: int | None = None
    ) -> AbstractContextManager[None]:
        shards = list(dict.fromkeys(_shard(param) for param in params))
        return gathered(shards, modifier_rank=modifier_rank)

    def empty_partition_cache(self) -> None:
        """Let go of every gathered parameter."""
        self.coordinator.drop_all(kept_too=True)

    def shards(self) -> Iterable[TensorShard]:
        yield from owned_shards(self._update.owned)
        yield from sharded_frozen(self._untrained(), self._comm.rank)
        yield from whole_shards([], named_buffers(self._module), self._comm)

    def facts(self) -> dict[str, Any]:
        facts = group_facts(self._update.owned, self._update.group_names, self._comm)
        return facts | {"scaler": self._update.gate.scaler.state_dict()}

    def load(self, reader: ShardReader, facts: Mapping[str, Any], *, what: LoadWhat) -> None:
        self.coordinator.drop_all(kept_too=True)
        frozen = [
            (fact, shard.local, min(shard.rank * shard.width, shard.numel), shard.own_numel)
            for fact, shard, is_frozen in self._untrained()
            if is_frozen or fact.numel
        ]
        owned = self._update.owned
        Loader(owned, self._facts, frozen, self._module).load(reader, facts, what)
        if what.weights:
            for segment in owned.segments:
                with owned.resident(segment, changed=True):
                    owned.refresh_weights([segment])
                    if self._round_weights and segment.is_master:
                        segment.master.copy_(segment.weights)
        if what.optimizer and "scaler" in facts:
            self._update.gate.scaler.load_state_dict(facts["scaler"])
        self.zero_grad()

    def close(self) -> None:
        if not self._handles:
            return
        self.zero_grad()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.coordinator.unwatch()
        self.coordinator.drop_all(kept_too=True)
        if self._swapped is not None:
            try:
                self._swapped.bring_back()
            except BaseException:
                self._swapped.close()
                raise
        self._exchange.end_assistance("the end of the engine")
        for param in self._facts:
            shard = _shard(param)
            shard.fetch_local = None
            start_gather([shard])
            finish_gather([shard])
            param.data = param.data.clone()
            hide(shard)
        hide_access(list(self._facts))
        self._by_index = []
        self._update.gradients.release()
        self._update.owned.residence.close()

    def _weights_changed(self, param: nn.Parameter) -> None:
        """A share was written: what is gathered of it is out of date."""
        shard = _shard(param)
        if shard.status is not ZeroParamStatus.NOT_AVAILABLE:
            self.coordinator.drop(shard)

    def _join(self, key: Key) -> Pending:
        return join_gather([self._by_index[index] for index in key])

    def _bind(self, unit: Unit) -> None:
        """Let the shares of the unit's parameters lie in one flat memory."""
        host = self._shares_on_host and unit.device.type != "cpu"
        device = torch.device("cpu") if host else unit.device
        pin = host and self._pin_shares
        unit.weights = torch.zeros(unit.share, dtype=unit.dtype, device=device, pin_memory=pin)
        for offset, shard in self._places(unit):
            place = unit.weights[offset : offset + shard.width]
            place.copy_(shard.local)
            shard.bind(place)
            shard.on_edit = partial(self._take_edit, unit, offset)

    def _move_unit(self, unit: Unit, weights: Tensor) -> None:
        """Let the shares of the unit's parameters lie in `weights`."""
        unit.weights = weights
        for offset, shard in self._places(unit):
            shard.bind(weights[offset : offset + shard.width])

    def _places(self, unit: Unit) -> Iterator[tuple[int, Shard]]:
        """The shards of a unit's parameters, by their offset in its flat memory."""
        offset = 0
        for param in unit.params:
            yield offset, _shard(param)
            offset += _shard(param).width

    def _swap_weights(self, settings: FullySettings) -> tuple[Offload, SwappedWeights | None]:
        """Choose the units whose weights leave memory, and what takes them."""
        offload = settings.offload
        if settings.weights_store is None:
            return offload, None
        inner = offload.residence() if offload.residence is not None else None
        swapped = SwappedWeights(settings.weights_store(), inner, count=settings.weights_pieces)
        kept = 0
        for unit in self._units:
            kept += unit.share
            unit.weights_leave = kept > settings.weights_in_memory
        return replace(offload, residence=lambda: swapped, swaps=inner is not None), swapped

    def _take_edit(self, unit: Unit, offset: int, own: Tensor) -> None:
        """Masters of a parameter start again from edited values."""
        owned = self._update.owned
        for segment in owned.segments:
            low = max(offset, segment.begin)
            high = min(offset + own.numel(), segment.end)
            if segment.unit is not unit or low >= high or not segment.is_master:
                continue
            with owned.resident(segment, changed=True), torch.no_grad():
                place = slice(low - segment.begin, high - segment.begin)
                segment.master[place].copy_(own[low - offset : high - offset])
                if unit.weights_leave:
                    segment.weights[place].copy_(own[low - offset : high - offset])

    def _watch(self, param: nn.Parameter) -> None:
        shard = _shard(param)
        if not param.is_floating_point():
            return  # no integer is ever trained, as the weights of a quantised model are
        trains = param.requires_grad
        param.requires_grad_(True)  # hooks may be needed later, if it is unfrozen
        before = param.register_hook(shard.show_shape)  # type: ignore[no-untyped-call]
        after = param.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
            partial(self._arrived, shard)
        )
        self._handles += [before, after]
        param.requires_grad_(trains)

    def _arrived(self, shard: Shard, param: nn.Parameter) -> None:
        grad = param.grad
        assert grad is not None
        param.grad = None
        shard.show_empty()
        if param in self._update.gradients:
            self._update.gradients.arrived(param, grad.to_dense() if grad.is_sparse else grad)
        self.coordinator.accumulated(shard)

    def _untrained(self) -> Iterator[tuple[Any, Shard, bool]]:
        """(fact, shard, frozen) of what no unit holds, and of what has no elements."""
        own = {param for unit in self._units for param in unit.params}
        for param, fact in self._facts.items():
            if param not in own or fact.numel == 0:
                yield fact, _shard(param), not param.requires_grad


def _segment_limit(settings: FullySettings) -> int:
    """Most elements that are stepped at once, and staged where weights lie in a store."""
    if settings.weights_store is None:
        return settings.step_elements
    return max(1, min(settings.step_elements, settings.weights_piece))


def _checked(comm: Communicator) -> Communicator:
    if comm.world_size == 1 or comm.device.type == "cpu":
        return comm
    return Communicator(comm.group, name=comm.name, taps=comm.taps, check=True)


def _shard(param: nn.Parameter) -> Shard:
    shard = shard_of(param)
    assert shard is not None, "not a parameter of stage 3"
    return shard


def _choose_kept(facts: Mapping[nn.Parameter, Any], each: int, together: int) -> None:
    total = 0
    smallest: Sequence[nn.Parameter] = sorted(facts, key=lambda param: facts[param].numel)
    for param in smallest:
        total += facts[param].numel
        if facts[param].numel > each or total > together:
            break
        shard = _shard(param)
        shard.keeps = True
        param.ds_persist = True  # type: ignore[attr-defined]
