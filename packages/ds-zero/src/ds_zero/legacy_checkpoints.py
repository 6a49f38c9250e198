"""Checkpoints that the reference wrote (stages 0 to 3, and universal ones), read by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ds_core.contracts import BUFFER, WEIGHT
from ds_core.errors import CheckpointError
from ds_zero.plan import share
from ds_zero.restricted import read_pt

GroupNames = Sequence[Sequence[str]]
"""Names of the parameters of each optimizer group, in order."""

_COUNTERS = ("global_steps", "global_samples", "skipped_steps", "micro_steps")
_OWN_KEYS = frozenset(
    {
        "module",
        "buffer_names",
        "optimizer",
        "param_shapes",
        "frozen_param_shapes",
        "frozen_param_fragments",
        "shared_params",
        "lr_scheduler",
        "data_sampler",
        "random_ltd",
        "sparse_tensor_module_names",
        "dp_world_size",
        "mp_world_size",
        "checkpoint_parallel_dimensions",
        "ds_config",
        "ds_version",
        *_COUNTERS,
    }
)


@dataclass
class Entry:
    """One slot of one parameter, in runs from its start on."""

    shape: tuple[int, ...]
    runs: list[Tensor]


class PieceReader:
    """A `ShardReader` over flat runs in memory (or mapped from files)."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._entries: dict[str, dict[str, Entry]] = {}
        self._primary: dict[str, str] = {}
        self._frozen: set[str] = set()

    def put(self, name: str, slot: str, shape: Iterable[int], runs: list[Tensor]) -> None:
        """Add a slot; `runs` follow each other."""
        self._entries.setdefault(name, {})[slot] = Entry(tuple(shape), runs)
        self._primary.setdefault(name, name)

    def alias(self, other: str, name: str) -> None:
        """Let `other` be another name of `name`."""
        self._primary[other] = name

    def freeze(self, name: str) -> None:
        """Note that a parameter is not trained."""
        self._frozen.add(name)

    def names(self) -> Iterable[str]:
        return list(self._entries)

    def aliases(self, name: str) -> tuple[str, ...]:
        """All names of a tensor, its main one first; empty if unknown."""
        main = self._primary.get(name)
        if main is None:
            return ()
        return (main, *(n for n, m in self._primary.items() if m == main and n != main))

    def frozen(self, name: str) -> bool:
        """Whether the parameter was frozen."""
        return self._primary.get(name) in self._frozen

    def slots(self, name: str) -> frozenset[str]:
        return frozenset(self._entries.get(self._primary.get(name, ""), ()))

    def shape(self, name: str, slot: str) -> tuple[int, ...]:
        return self._entry(name, slot).shape

    def dtype(self, name: str, slot: str) -> torch.dtype:
        return self._entry(name, slot).runs[0].dtype

    def read(self, name: str, slot: str, start: int, out: Tensor) -> None:
        entry = self._entry(name, slot)
        position, stop = 0, start + out.numel()
        for run in entry.runs:
            low, high = max(start, position), min(stop, position + run.numel())
            if low < high:
                part = run.reshape(-1)[low - position : high - position]
                out[low - start : high - start].copy_(part)
            position += run.numel()
        if position < stop:
            raise CheckpointError(
                f"{self._where}: {name!r} ({slot}) has {position} elements, {stop} were asked for"
            )

    def _entry(self, name: str, slot: str) -> Entry:
        found = self._entries.get(self._primary.get(name, ""), {}).get(slot)
        if found is None:
            raise CheckpointError(f"{self._where} holds no {slot!r} of {name!r}")
        return found


@dataclass
class LegacyCheckpoint:
    """A checkpoint of the reference, opened.

    Attributes:
        reader: its tensors by name and range.
        facts: parameter-group options; what `UpdateStrategy.load` takes.
        counters: `global_steps`, `global_samples`, `skipped_steps`.
        client_state: what the user put beside them.
        lr_scheduler: the schedule's state, or None.
    """

    path: Path
    reader: PieceReader
    facts: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    client_state: dict[str, Any] = field(default_factory=dict)
    lr_scheduler: dict[str, Any] | None = None


def is_legacy(folder: Path) -> bool:
    """Whether the reference wrote `folder` (a tag's folder, or a universal one)."""
    return any(folder.glob("*model_states.pt")) or (folder / "zero").is_dir()


def open_legacy(
    directory: Path, tag: str | None = None, *, group_names: GroupNames = (), unsafe: bool = False
) -> LegacyCheckpoint:
    """Open `directory/tag`; None for the tag that `latest` names.

    Args:
        group_names: parameters of the running optimizer's groups; needed where the checkpoint
            knows them by number only (stage 0).
        unsafe: unpickle with full power; see `read_pt`.
    """
    folder = tag_folder(directory, tag)
    models = ordered(folder, "*model_states.pt")
    if not models:
        raise CheckpointError(f"{folder} holds no *_model_states.pt: not a checkpoint")
    states = [read_pt(path, unsafe=unsafe) for path in models]
    optimizers = [read_pt(p, unsafe=unsafe) for p in ordered(folder, "*optim_states.pt")]
    found = LegacyCheckpoint(folder, PieceReader(str(folder)))
    _read_model(found, states)
    inner = [entry["optimizer_state_dict"] for entry in optimizers]
    if not inner:
        _read_stage_0(found, states[0].get("optimizer"), group_names)
    elif "fp32_flat_groups" in inner[0]:
        _read_stage_3(found, states[0]["param_shapes"], inner)
    else:
        _read_stages_1_and_2(found, states[0]["param_shapes"], inner)
    return found


def tag_folder(directory: Path, tag: str | None) -> Path:
    """`directory/tag`; without a tag, `directory` itself or the tag that `latest` names."""
    if tag is None and is_legacy(directory):
        return directory
    if tag is None:
        try:
            tag = (directory / "latest").read_text().strip()
        except FileNotFoundError:
            raise CheckpointError(f"{directory / 'latest'} is missing: pass a tag") from None
    return directory / tag


def ordered(folder: Path, pattern: str) -> list[Path]:
    """Files in order of the numbers in their names: rank 10 after rank 9."""
    return sorted(
        folder.glob(pattern),
        key=lambda path: [int(number) for number in re.findall(r"\d+", path.name)],
    )


def _read_model(found: LegacyCheckpoint, states: Sequence[Mapping[str, Any]]) -> None:
    first = states[0]
    found.counters = {key: int(first[key]) for key in _COUNTERS if key in first}
    found.client_state = {key: value for key, value in first.items() if key not in _OWN_KEYS}
    found.lr_scheduler = first.get("lr_scheduler")
    reader, module = found.reader, first.get("module") or {}
    buffers = set(first.get("buffer_names") or ())
    ties: dict[str, str] = dict(first.get("shared_params") or {})
    for other, name in (ties or _ties(module)).items():
        reader.alias(other, name)
        ties[other] = name
    trained = {name for group in first.get("param_shapes") or () for name in group}
    for name, tensor in module.items():
        if name in ties or not torch.is_tensor(tensor):
            continue
        if name in buffers:
            reader.put(name, BUFFER, tensor.shape, [tensor])
        elif tensor.numel() or not trained:
            reader.put(name, WEIGHT, tensor.shape, [tensor])
            if trained and name not in trained:
                reader.freeze(name)
    for name, shape in (first.get("frozen_param_shapes") or {}).items():
        fragments = [(state.get("frozen_param_fragments") or {}).get(name) for state in states]
        present = [fragment.reshape(-1) for fragment in fragments if fragment is not None]
        if len(present) == len(states):
            reader.put(name, WEIGHT, shape, present)
        reader.freeze(name)


def _ties(module: Mapping[str, Any]) -> dict[str, str]:
    """Names that share one memory in the file, by the first of them."""
    seen: dict[tuple[int, torch.Size], str] = {}
    ties = {}
    for name, tensor in module.items():
        if torch.is_tensor(tensor) and tensor.numel():
            key = (tensor.data_ptr(), tensor.shape)
            if key in seen:
                ties[name] = seen[key]
            seen.setdefault(key, name)
    return ties


def _read_stages_1_and_2(
    found: LegacyCheckpoint, shapes: Sequence[Mapping[str, Any]], ranks: Sequence[Mapping[str, Any]]
) -> None:
    """Each rank has a partition a group, and says which parameters' elements lie where in it."""
    shape_of = {name: tuple(shape) for group in shapes for name, shape in group.items()}
    runs: dict[tuple[str, str], list[Tensor]] = {}
    for rank in ranks:
        base = rank["base_optimizer_state"]
        for number, partition in enumerate(rank["single_partition_of_fp32_groups"]):
            state = base["state"].get(number, {})
            slots = {WEIGHT: partition} | _flat_slots(state, partition.numel())
            mapping = rank["param_slice_mappings"][number]
            for name, place in sorted(mapping.items(), key=lambda item: item[1].start):
                for slot, flat in slots.items():
                    run = flat[place.start : place.start + place.numel]
                    runs.setdefault((name, slot), []).append(run)
    for (name, slot), parts in runs.items():
        found.reader.put(name, slot, shape_of[name], parts)
    base = ranks[0]["base_optimizer_state"]
    by_group = [list(group) for group in shapes]
    _put_numbers(found.reader, base["state"], dict(enumerate(by_group)))
    found.facts = _facts(base["param_groups"], by_group)


def _flat_slots(state: Mapping[str, Any], numel: int) -> dict[str, Tensor]:
    """Moments of a partition; they may lack its padding."""
    return {
        slot: value
        for slot, value in state.items()
        if torch.is_tensor(value) and value.dim() == 1 and 0 < value.numel() <= numel
    }


def _read_stage_3(
    found: LegacyCheckpoint, shapes: Sequence[Mapping[str, Any]], ranks: Sequence[Mapping[str, Any]]
) -> None:
    """Each rank has flat sub-groups in which every parameter has an equal, padded share."""
    by_group = [list(group) for group in shapes]
    shape_of = {name: tuple(shape) for group in shapes for name, shape in group.items()}
    order = [name for names in by_group for name in names]
    flats = ranks[0]["fp32_flat_groups"]
    base = [rank["optimizer_state_dict"] for rank in ranks]
    names_of: dict[int, list[str]] = {}
    sub, offset = 0, 0
    for name in order:
        total = torch.Size(shape_of[name]).numel()
        width = share(total, len(ranks))
        while sub < len(flats) and offset + width > flats[sub].numel():
            sub, offset = sub + 1, 0
        if sub == len(flats):
            raise CheckpointError(f"{found.path}: flat groups end before {name!r}")
        names_of.setdefault(sub, []).append(name)
        slots = {WEIGHT, *_flat_slots(base[0]["state"].get(sub, {}), flats[sub].numel())}
        for slot in slots:
            runs: list[Tensor] = []
            for rank, states in zip(ranks, base, strict=True):
                flat = rank["fp32_flat_groups"] if slot == WEIGHT else None
                source = flat[sub] if flat is not None else states["state"][sub][slot]
                left = max(0, total - width * len(runs))
                runs.append(source[offset : offset + min(width, left)])
            found.reader.put(name, slot, shape_of[name], runs)
        offset += width
    _put_numbers(found.reader, base[0]["state"], names_of)
    found.facts = _facts(base[0]["param_groups"], by_group)


def _read_stage_0(
    found: LegacyCheckpoint, optimizer: Mapping[str, Any] | None, group_names: GroupNames
) -> None:
    """Whole tensors, parameters known by number."""
    if optimizer is None:
        return
    inner = optimizer.get("optimizer_state_dict", optimizer)
    groups = inner.get("param_groups")
    if groups is None:
        return
    sizes = [len(group["params"]) for group in groups]
    if sizes != [len(names) for names in group_names]:
        if not group_names:
            return  # weights only: nobody said whose moments these are
        raise CheckpointError(
            f"{found.path}: optimizer groups of {sizes} parameters, this run's have "
            f"{[len(names) for names in group_names]}"
        )
    reader = found.reader
    masters = optimizer.get("fp32_groups") or optimizer.get("fp32_groups_flat") or ()
    for number, (group, names) in enumerate(zip(groups, group_names, strict=True)):
        for position, (index, name) in enumerate(zip(group["params"], names, strict=True)):
            if masters and isinstance(masters[number], (list, tuple)):
                master = masters[number][position]
                reader.put(name, WEIGHT, master.shape, [master])
            for slot, value in inner["state"].get(index, {}).items():
                if torch.is_tensor(value):
                    reader.put(name, slot, value.shape, [value.reshape(-1)])
    found.facts = _facts(groups, [list(names) for names in group_names])


def _put_numbers(
    reader: PieceReader, state: Mapping[Any, Any], names_of: Mapping[int, Sequence[str]]
) -> None:
    """Numbers of a group's state (`step`) belong to each of its parameters."""
    for number, names in names_of.items():
        for slot, value in state.get(number, {}).items():
            is_number = isinstance(value, (int, float))
            if is_number or (torch.is_tensor(value) and value.dim() == 0):
                number_tensor = torch.as_tensor(float(value) if is_number else value)
                for name in names:
                    reader.put(name, slot, (), [number_tensor.reshape(1)])


def _facts(groups: Sequence[Mapping[str, Any]], names: Sequence[Sequence[str]]) -> dict[str, Any]:
    return {
        "param_groups": [
            {key: value for key, value in group.items() if key != "params"} | {"params": list(own)}
            for group, own in zip(groups, names, strict=True)
        ],
        "numbers": {},
    }
