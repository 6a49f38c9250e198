"""Saving and loading what a rank owns, by parameter name and element range."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ds_core.comm import Communicator
from ds_core.contracts import BUFFER, WEIGHT, LoadWhat, ShardReader, TensorShard
from ds_core.naming import named_buffers
from ds_core.state import check_groups, fill, restore_groups, select, share
from ds_zero.owned import OwnedState
from ds_zero.params import Shard
from ds_zero.plan import Slice, cut
from ds_zero.segments import Part, Segment
from ds_zero.units import Fact

_SCALARS = frozenset({"step"})
"""Slots that hold one number a parameter even where the parameter is a scalar itself."""


def owned_shards(owned: OwnedState) -> Iterator[TensorShard]:
    """Masters and moments of this rank's segments; each piece is valid until the next."""
    for segment in owned.segments:
        if not segment.slices:
            continue
        with owned.resident(segment):
            for piece in segment.slices:
                own = segment.master[piece.offset : piece.offset + piece.length]
                yield _shard(segment.unit.facts[piece.index], WEIGHT, piece.start, own)
            for part in segment.parts:
                yield from _state_shards(owned, segment, part)


def _state_shards(owned: OwnedState, segment: Segment, part: Part) -> Iterator[TensorShard]:
    state = owned.state(part)
    for piece in cut(segment.slices, part.begin, part.end):
        fact = segment.unit.facts[piece.index]
        for slot, value in sorted(state.items()):
            if not torch.is_tensor(value):
                continue
            if value.dim() == 1 and value.numel() == part.end - part.begin:
                own = value[piece.offset : piece.offset + piece.length]
                yield _shard(fact, slot, piece.start, own)
            elif piece.start == 0:
                shape = tuple(value.shape)
                own = value.detach().reshape(-1)
                yield TensorShard(fact.name, slot, shape, 0, own, fact.aliases, False)


def _shard(
    fact: Fact, slot: str, start: int, piece: Tensor, *, frozen: bool = False
) -> TensorShard:
    own = piece.detach()
    return TensorShard(fact.name, slot, tuple(fact.shape), start, own, fact.aliases, frozen)


def whole_shards(
    tensors: Sequence[tuple[Fact, Tensor, bool]], buffers: Mapping[str, Tensor], comm: Communicator
) -> Iterator[TensorShard]:
    """This rank's part of (fact, tensor, frozen) and buffers that all ranks hold whole."""
    entries = [(fact, WEIGHT, tensor, frozen) for fact, tensor, frozen in tensors]
    for name, buffer in buffers.items():
        entries.append((Fact(name, (), buffer.shape, -1), BUFFER, buffer, False))
    sizes = [tensor.numel() for _, _, tensor, _ in entries]
    for index, start, stop in share(sizes, comm.rank, comm.world_size):
        fact, slot, tensor, frozen = entries[index]
        flat = tensor.detach().reshape(-1)[start:stop]
        yield _shard(fact, slot, start, flat, frozen=frozen)


def sharded_frozen(entries: Iterable[tuple[Fact, Shard, bool]], rank: int) -> Iterator[TensorShard]:
    """This rank's shares of parameters that no optimizer updates: (fact, shard, frozen)."""
    for fact, shard, frozen in entries:
        if shard.own_numel or (rank == 0 and fact.numel == 0):
            start = min(shard.rank * shard.width, shard.numel)
            yield _shard(fact, WEIGHT, start, shard.local[: shard.own_numel], frozen=frozen)


def group_facts(
    owned: OwnedState, group_names: Sequence[Sequence[str]], comm: Communicator
) -> dict[str, Any]:
    """Options of the parameter groups and plain numbers of the state; all ranks call this."""
    groups = [
        {key: _plain(value) for key, value in group.items() if key != "params"}
        | {"params": list(names)}
        for group, names in zip(owned.optimizer.param_groups, group_names, strict=True)
    ]
    own: dict[str, dict[str, Any]] = {}
    for segment in owned.segments:
        for part in segment.parts:
            plain = {k: v for k, v in owned.state(part).items() if not torch.is_tensor(v)}
            if plain:
                for piece in cut(segment.slices, part.begin, part.end):
                    own[segment.unit.facts[piece.index].name] = plain
    numbers: dict[str, dict[str, Any]] = {}
    for other in comm.all_gather_object(own):
        numbers.update(other)
    return {"param_groups": groups, "numbers": dict(sorted(numbers.items()))}


def _plain(value: Any) -> Any:
    return value.tolist() if torch.is_tensor(value) else value


class Loader:
    """Fills segments, and what every rank holds whole, from a checkpoint of any layout.

    Args:
        owned: trained parameters.
        facts: all parameters of the module.
        frozen: (fact, this rank's flat target, its start, its length) of untrained ones.
        module: for its buffers.
    """

    def __init__(
        self,
        owned: OwnedState,
        facts: Mapping[nn.Parameter, Fact],
        frozen: Sequence[tuple[Fact, Tensor, int, int]],
        module: nn.Module,
    ) -> None:
        self._owned, self._facts, self._frozen, self._module = owned, facts, frozen, module

    def load(self, reader: ShardReader, facts: Mapping[str, Any], what: LoadWhat) -> None:
        """Check everything, then write masters, moments, frozen parameters and buffers."""
        found = self._check(reader, what) if what.weights else set()
        if what.optimizer:
            check_groups(self._owned.optimizer, facts)
        if found:
            self._load_whole(reader, found)
        for segment in self._owned.segments:
            with self._owned.resident(segment, changed=True):
                if what.weights:
                    self._load_weights(reader, segment, found)
                if what.optimizer:
                    self._load_state(reader, segment, facts.get("numbers", {}))
        if what.optimizer:
            restore_groups(self._owned.optimizer, facts)

    def _check(self, reader: ShardReader, what: LoadWhat) -> set[tuple[str, str]]:
        frozen = {fact.name for fact, _, _, _ in self._frozen}
        wanted: list[tuple[str, str, Tensor, bool]] = [
            (f.name, WEIGHT, torch.empty(f.shape, device="meta"), f.name not in frozen)
            for f in self._facts.values()
        ]
        wanted += [(n, BUFFER, b, True) for n, b in named_buffers(self._module).items()]
        known = {name for name, _, _, _ in wanted}
        known |= {alias for fact in self._facts.values() for alias in fact.aliases}
        return {(n, slot) for n, slot, _ in select(reader, wanted, known, strict=what.strict)}

    def _load_whole(self, reader: ShardReader, found: set[tuple[str, str]]) -> None:
        with torch.no_grad():
            for fact, target, start, length in self._frozen:
                if (fact.name, WEIGHT) in found and length:
                    read_into(reader, fact.name, WEIGHT, start, target[:length])
            for name, buffer in named_buffers(self._module).items():
                if (name, BUFFER) in found:
                    fill(reader, name, BUFFER, buffer)

    def _load_weights(
        self, reader: ShardReader, segment: Segment, found: set[tuple[str, str]]
    ) -> None:
        for piece in segment.slices:
            name = segment.unit.facts[piece.index].name
            if (name, WEIGHT) in found:
                target = segment.master[piece.offset : piece.offset + piece.length]
                read_into(reader, name, WEIGHT, piece.start, target)

    def _load_state(
        self, reader: ShardReader, segment: Segment, numbers: Mapping[str, Mapping[str, Any]]
    ) -> None:
        singles = [_singles(reader, segment, piece, numbers) for piece in segment.slices]
        changes = {
            piece.offset
            for piece, single, before in zip(
                segment.slices[1:], singles[1:], singles[:-1], strict=True
            )
            if single != before
        }
        self._owned.cut_at(segment, changes)
        for part in segment.parts:
            self._owned.optimizer.state.pop(part.param, None)
            inside = cut(segment.slices, part.begin, part.end)
            if inside:
                state = _read_state(reader, segment, part, inside, numbers)
                if state:
                    self._owned.optimizer.state[part.param] = state


def _slots(reader: ShardReader, fact: Fact) -> tuple[list[str], list[str]]:
    """(slots with an element each, slots with one number) stored for a parameter."""
    elements: list[str] = []
    single: list[str] = []
    for slot in sorted(reader.slots(fact.name) - {WEIGHT, BUFFER}):
        is_single = slot in _SCALARS or reader.shape(fact.name, slot) != tuple(fact.shape)
        (single if is_single else elements).append(slot)
    return elements, single


def _singles(
    reader: ShardReader, segment: Segment, piece: Slice, numbers: Mapping[str, Mapping[str, Any]]
) -> tuple[Any, ...]:
    """All that must be equal for two parameters to share a part."""
    fact = segment.unit.facts[piece.index]
    elements, single = _slots(reader, fact)
    values = [(slot, _number(reader, fact.name, slot).tolist()) for slot in single]
    return (elements, values, dict(numbers.get(fact.name, {})))


def _number(reader: ShardReader, name: str, slot: str) -> Tensor:
    value = torch.empty(reader.shape(name, slot), dtype=reader.dtype(name, slot))
    reader.read(name, slot, 0, value.view(-1))
    return value


def _read_state(
    reader: ShardReader,
    segment: Segment,
    part: Part,
    inside: Sequence[Slice],
    numbers: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    first = segment.unit.facts[inside[0].index]
    elements, single = _slots(reader, first)
    state: dict[str, Any] = {slot: _number(reader, first.name, slot) for slot in single}
    for slot in elements:
        dtype = reader.dtype(first.name, slot)
        value = torch.zeros(part.end - part.begin, dtype=dtype, device=segment.master.device)
        for piece in inside:
            name = segment.unit.facts[piece.index].name
            target = value[piece.offset : piece.offset + piece.length]
            read_into(reader, name, slot, piece.start, target)
        state[slot] = value
    return state | dict(numbers.get(first.name, {}))


def read_into(reader: ShardReader, name: str, slot: str, start: int, target: Tensor) -> None:
    """Read elements from `start` on into flat `target`, wherever it lies."""
    if target.device.type == "cpu":
        reader.read(name, slot, start, target.detach())
        return
    staged = torch.empty(target.numel(), dtype=target.dtype)
    reader.read(name, slot, start, staged)
    target.detach().copy_(staged)
