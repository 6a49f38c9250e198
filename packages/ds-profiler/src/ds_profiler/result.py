"""What a profile says, as plain data."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ds_profiler.depth import MOST, room_for
from ds_profiler.errors import UsageError
from ds_profiler.tally import BACKWARD, FORWARD, RECOMPUTE
from ds_profiler.units import duration_to_string, number_to_string

FORMAT = 1
"""Version of the JSON form."""

_INDENTED = 50
"""Levels up to which JSON has line breaks: with them, time and size grow with depth squared."""


@dataclass(frozen=True, slots=True)
class Work:
    """Multiply-accumulates, and all floating-point operations (two each, and others)."""

    macs: int = 0
    flops: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.macs + other.macs, self.flops + other.flops)


@dataclass(frozen=True, slots=True)
class OperatorProfile:
    """The calls of one operator made by one module itself in one phase."""

    name: str
    phase: str
    calls: int
    macs: int
    flops: int


@dataclass(frozen=True, slots=True)
class ModuleProfile:
    """A module with everything below it.

    Attributes:
        name: dotted path in the model; "" for the model itself.
        kind: its class.
        extra: what its class prints about itself (`in_features=4, ...`).
        calls: times its forward ran, recomputations left out; 0 for a mere container.
        params: parameters in it, each counted once however often it is used.
        param_bytes: their size.
        forward, backward, recompute: work inside it, children included. `recompute` is what
            activation checkpointing ran again.
        forward_seconds, backward_seconds: time inside it, children included; 0 if not measured.
        activation_bytes: memory that its forward pass kept for the backward pass.
        shared_with: the path under which this same object was already listed, or None; then it
            has no numbers of its own here.
        uncounted: operators without a rule that it called itself, with their numbers of calls.
    """

    name: str
    kind: str
    extra: str = ""
    calls: int = 0
    params: int = 0
    param_bytes: int = 0
    forward: Work = Work()
    backward: Work = Work()
    recompute: Work = Work()
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    activation_bytes: int = 0
    shared_with: str | None = None
    operators: tuple[OperatorProfile, ...] = ()
    uncounted: dict[str, int] = field(default_factory=dict)
    children: tuple[ModuleProfile, ...] = ()

    def __repr__(self) -> str:
        return f"ModuleProfile({self.name!r}: {self.kind}, {self.summary()})"

    def summary(self) -> str:
        """Its numbers in a few words."""
        if self.shared_with is not None:
            return f"shared with {self.shared_with!r}"
        parts = [f"{number_to_string(self.params)} params"]
        for phase, work in (("fwd", self.forward), ("bwd", self.backward)):
            if work.flops:
                parts.append(f"{phase} {number_to_string(work.flops)} flops")
        for phase, seconds in (("fwd", self.forward_seconds), ("bwd", self.backward_seconds)):
            if seconds:
                parts.append(f"{phase} {duration_to_string(seconds)}")
        return ", ".join(" ".join(part.split()) for part in parts)

    @property
    def label(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    def walk(self, depth: int = 0) -> Iterator[tuple[int, ModuleProfile]]:
        """This module and all below it, with their depths, parents first."""
        left = [(depth, self)]
        while left:
            level, module = left.pop()
            yield level, module
            left += [(level + 1, child) for child in reversed(module.children)]


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of a model.

    Attributes:
        root: the model.
        uncounted: operators nobody knows the cost of, with their numbers of calls. While this is
            empty, the counts are complete.
        outside: work seen while profiling that belongs to no module of the model (a loss computed
            outside, gradient accumulation), by phase.
        forward_seconds, backward_seconds, step_seconds: of the whole pass, as its caller saw it.
        device: where it ran ("meta" or "fake" if nothing was computed).
        peak_flops: what the device could do a second, if given; for the utilisation.
        samples: samples in the batch, if known.
        world_size, data_parallel, model_parallel: how the run was spread.
    """

    root: ModuleProfile
    uncounted: dict[str, int] = field(default_factory=dict)
    outside: dict[str, Work] = field(default_factory=dict)
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    step_seconds: float = 0.0
    device: str = "cpu"
    peak_flops: float | None = None
    samples: int | None = None
    world_size: int = 1
    data_parallel: int = 1
    model_parallel: int = 1

    def __repr__(self) -> str:
        modules = sum(1 for _ in self.root.walk())
        lacking = f", {len(self.uncounted)} operators uncounted" if self.uncounted else ""
        return (
            f"Profile({self.root.kind} on {self.device}: {self.root.summary()}, "
            f"modules {modules}{lacking}; text_report shows all)"
        )

    @property
    def params(self) -> int:
        """Parameters of the model."""
        return self.root.params

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the forward pass."""
        return self.root.forward.macs

    @property
    def flops(self) -> int:
        """Floating-point operations of the forward pass."""
        return self.root.forward.flops

    @property
    def backward_flops(self) -> int:
        """Floating-point operations of the backward pass, recomputed ones left out."""
        return self.root.backward.flops

    @property
    def utilisation(self) -> float | None:
        """Achieved matrix operations as a fraction of `peak_flops` (MFU); None if not known.

        Recomputed work is not counted as achieved.
        """
        seconds = self.forward_seconds + self.backward_seconds
        if not self.peak_flops or not seconds:
            return None
        done = 2 * (self.root.forward.macs + self.root.backward.macs)
        return done / seconds / self.peak_flops

    def __getitem__(self, name: str) -> ModuleProfile:
        """The module called `name`."""
        for _, module in self.root.walk():
            if module.name == name:
                return module
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON-serialisable values."""
        with self.room():
            return {
                "format": FORMAT,
                "total": {
                    "params": self.params,
                    FORWARD: asdict(self.root.forward),
                    BACKWARD: asdict(self.root.backward),
                    RECOMPUTE: asdict(self.root.recompute),
                    "utilisation": self.utilisation,
                },
                **asdict(self),
            }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Profile:
        """The inverse of `to_dict`."""
        if data.get("format") != FORMAT:
            raise UsageError(f"not a profile of format {FORMAT}: format is {data.get('format')!r}")
        rest = {key: data[key] for key in data if key not in ("format", "total")}
        rest["root"] = _module(rest["root"])
        rest["outside"] = {phase: Work(**work) for phase, work in rest["outside"].items()}
        return cls(**rest)

    def to_json(self) -> str:
        """`to_dict` as JSON, a line a value unless it nests deep."""
        indent = 1 if self._levels() <= _INDENTED else None
        with self.room():
            return json.dumps(self.to_dict(), indent=indent)

    def room(self) -> AbstractContextManager[None]:
        """Inside, what recurses over the tree has room on the stack."""
        return room_for(self._levels())

    def _levels(self) -> int:
        return 1 + max(depth for depth, _ in self.root.walk())

    def save(self, path: str | Path) -> None:
        """Write `to_json` to a file."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Read what `save` wrote."""
        try:
            with room_for(MOST):
                return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except (UsageError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{path} holds no profile: {error!r}") from error


def _module(data: dict[str, Any]) -> ModuleProfile:
    works = {key: Work(**data[key]) for key in (FORWARD, BACKWARD, RECOMPUTE)}
    operators = tuple(OperatorProfile(**row) for row in data["operators"])
    children = tuple(_module(child) for child in data["children"])
    return ModuleProfile(**{**data, **works, "operators": operators, "children": children})
