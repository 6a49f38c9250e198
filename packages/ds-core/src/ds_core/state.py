"""Saving and loading the state of replicas, each element written by one rank."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ds_core.comm import Communicator
from ds_core.contracts import BUFFER, WEIGHT, LoadWhat, ShardReader, TensorShard
from ds_core.errors import CheckpointError
from ds_core.naming import ParameterNames, named_buffers

logger = logging.getLogger(__name__)

_KINDS = ("betas", "momentum", "alpha", "rho", "lr_decay")


def share(numels: Sequence[int], rank: int, world: int) -> list[tuple[int, int, int]]:
    """`(index, start, stop)` of the elements that `rank` writes of tensors laid end to end.

    Every element belongs to one rank, loads differ by at most one element, and a tensor without
    elements belongs to rank 0.

    >>> share([4, 0, 3], 0, 2), share([4, 0, 3], 1, 2)
    ([(0, 0, 4), (1, 0, 0)], [(2, 0, 3)])
    """
    total = sum(numels)
    first, last = -(-total * rank // world), -(-total * (rank + 1) // world)
    pieces = []
    offset = 0
    for index, numel in enumerate(numels):
        start, stop = max(first, offset), min(last, offset + numel)
        if start < stop:
            pieces.append((index, start - offset, stop - offset))
        elif numel == 0 and rank == 0:
            pieces.append((index, 0, 0))
        offset += numel
    return pieces


def replicated_shards(
    module: nn.Module,
    names: ParameterNames,
    held: Mapping[nn.Parameter, nn.Parameter],
    optimizer: torch.optim.Optimizer | None,
    comm: Communicator,
) -> Iterator[TensorShard]:
    """This rank's part of weights, buffers and optimizer tensors that all ranks hold alike.

    Args:
        held: for each parameter the tensor that is updated (its master, or itself).
    """
    entries: list[tuple[str, str, Tensor, tuple[str, ...], bool]] = []
    for param, name in names.names.items():
        aliases, frozen = names.aliases[param], not param.requires_grad
        target = held.get(param, param)
        entries.append((name, WEIGHT, target, aliases, frozen))
        state = optimizer.state.get(target, {}) if optimizer is not None else {}
        for slot, value in sorted(state.items()):
            if torch.is_tensor(value):
                entries.append((name, slot, value, aliases, frozen))
    for name, buffer in named_buffers(module).items():
        entries.append((name, BUFFER, buffer, (), False))
    for index, start, stop in share([e[2].numel() for e in entries], comm.rank, comm.world_size):
        name, slot, value, aliases, frozen = entries[index]
        flat = value.detach().reshape(-1)[start:stop]
        yield TensorShard(name, slot, tuple(value.shape), start, flat, aliases, frozen)


def optimizer_facts(
    optimizer: torch.optim.Optimizer,
    names: ParameterNames,
    held: Mapping[nn.Parameter, nn.Parameter],
) -> dict[str, Any]:
    """Parameter-group options and the plain numbers of the optimizer's state, by name."""
    name_of: dict[Tensor, str] = {
        held.get(param, param): name for param, name in names.names.items()
    }
    groups = [
        {key: _plain(value) for key, value in group.items() if key != "params"}
        | {"params": [name_of.get(param, "?") for param in group["params"]]}
        for group in optimizer.param_groups
    ]
    numbers: dict[str, dict[str, Any]] = {}
    for target, state in optimizer.state.items():
        plain = {key: value for key, value in state.items() if not torch.is_tensor(value)}
        if plain and target in name_of:
            numbers[name_of[target]] = plain
    return {"param_groups": groups, "numbers": numbers}


def _plain(value: Any) -> Any:
    return value.tolist() if torch.is_tensor(value) else value


class ReplicatedLoader:
    """Fills a model and an optimizer that this rank holds whole, after checking everything."""

    def __init__(
        self,
        module: nn.Module,
        names: ParameterNames,
        held: Mapping[nn.Parameter, nn.Parameter],
        optimizer: torch.optim.Optimizer | None,
    ) -> None:
        self._module, self._names, self._held = module, names, held
        self._optimizer = optimizer

    def load(self, reader: ShardReader, facts: Mapping[str, Any], what: LoadWhat) -> None:
        """Check, then write. Masters are loaded; the caller refreshes low-precision weights."""
        targets = self._weights(reader, what) if what.weights else []
        restore_options = what.optimizer and self._optimizer is not None
        if restore_options:
            check_groups(self._optimizer, facts)  # type: ignore[arg-type]
        with torch.no_grad():
            for name, slot, target in targets:
                fill(reader, name, slot, target)
            if restore_options:
                self._load_optimizer(reader, facts)

    def _weights(self, reader: ShardReader, what: LoadWhat) -> list[tuple[str, str, Tensor]]:
        wanted: list[tuple[str, str, Tensor, bool]] = [
            (name, WEIGHT, self._held.get(param, param), param.requires_grad)
            for param, name in self._names.names.items()
        ]
        wanted += [(n, BUFFER, b, True) for n, b in named_buffers(self._module).items()]
        known = {name for name, _, _, _ in wanted}
        known |= {alias for aliases in self._names.aliases.values() for alias in aliases}
        return select(reader, wanted, known, strict=what.strict)

    def _load_optimizer(self, reader: ShardReader, facts: Mapping[str, Any]) -> None:
        optimizer = self._optimizer
        assert optimizer is not None
        restore_groups(optimizer, facts)
        numbers = facts.get("numbers", {})
        for param, name in self._names.names.items():
            target = self._held.get(param, param)
            state: dict[str, Any] = {}
            for slot in sorted(reader.slots(name) - {WEIGHT, BUFFER}):
                shape, dtype = reader.shape(name, slot), reader.dtype(name, slot)
                device = target.device if shape == tuple(target.shape) else "cpu"
                value = torch.empty(shape, dtype=dtype, device=device)
                fill(reader, name, slot, value)
                state[slot] = value
            state.update(numbers.get(name, {}))
            if state:
                optimizer.state[target] = state
            else:
                optimizer.state.pop(target, None)


def select(
    reader: ShardReader,
    wanted: Sequence[tuple[str, str, Tensor, bool]],
    known: set[str],
    *,
    strict: bool,
) -> list[tuple[str, str, Tensor]]:
    """The wanted (name, slot, whole tensor, required) that the checkpoint has, shapes checked.

    A parameter that is not required (frozen) may be missing from a checkpoint that left frozen
    ones out; it keeps its value.
    """
    found: list[tuple[str, str, Tensor]] = []
    missing: list[str] = []
    wrong: list[str] = []
    kept: list[str] = []
    for name, slot, target, required in wanted:
        if slot not in reader.slots(name):
            (missing if required else kept).append(name)
        elif reader.shape(name, slot) != tuple(target.shape):
            wrong.append(f"{name}: {reader.shape(name, slot)} saved, {tuple(target.shape)} here")
        else:
            found.append((name, slot, target))
    extra = [n for n in reader.names() if n not in known and reader.slots(n) & {WEIGHT, BUFFER}]
    complaints = []
    if wrong:
        complaints.append("shapes differ: " + "; ".join(wrong))
    if strict and missing:
        complaints.append("not in the checkpoint: " + ", ".join(missing))
    if strict and extra:
        complaints.append("not in the model: " + ", ".join(extra))
    if complaints:
        raise CheckpointError("the checkpoint does not fit the model; " + ". ".join(complaints))
    for label, names in (("frozen", kept), ("missing", missing)):
        if names:
            logger.warning("left as they were (%s, not in the checkpoint): %s", label, names)
    return found


def fill(reader: ShardReader, name: str, slot: str, target: Tensor) -> None:
    """Read a whole tensor into `target`, wherever it lies."""
    if target.device.type == "cpu" and target.is_contiguous():
        reader.read(name, slot, 0, target.detach().view(-1))
        return
    staged = torch.empty(target.numel(), dtype=target.dtype)
    reader.read(name, slot, 0, staged)
    target.copy_(staged.view(target.shape))


def check_groups(optimizer: torch.optim.Optimizer, facts: Mapping[str, Any]) -> None:
    """Raise if the saved parameter groups cannot be those of `optimizer`."""
    saved = facts.get("param_groups")
    if saved is None:
        raise CheckpointError(
            "the checkpoint holds no optimizer state; load it with load_optimizer_states=False"
        )
    if len(saved) != len(optimizer.param_groups):
        raise CheckpointError(
            f"the checkpoint has {len(saved)} parameter groups, the optimizer "
            f"{len(optimizer.param_groups)}"
        )
    for number, (group, old) in enumerate(zip(optimizer.param_groups, saved, strict=True)):
        here, there = _kind(group), _kind(old)
        if there and here != there:
            raise CheckpointError(
                f"the checkpoint is of another kind of optimizer: parameter group {number} has "
                f"{', '.join(there)} there and {', '.join(here) or 'lr'} here; load it with "
                "load_optimizer_states=False to start with fresh optimizer state"
            )


def _kind(options: Mapping[str, Any]) -> list[str]:
    """What tells kinds of optimizers with other moments apart; empty where it is not known."""
    return [key for key in _KINDS if key in options]


def restore_groups(optimizer: torch.optim.Optimizer, facts: Mapping[str, Any]) -> None:
    """Set the options of each parameter group (lr, betas, ...) to the saved ones."""
    for group, saved in zip(optimizer.param_groups, facts["param_groups"], strict=True):
        for key, value in saved.items():
            if key == "params":
                continue
            old = group.get(key)
            if torch.is_tensor(old):
                old.fill_(value)
            else:
                group[key] = tuple(value) if isinstance(old, tuple) else value
