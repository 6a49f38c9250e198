"""Joining counts, times and sizes into a profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from ds_profiler.cost import Cost
from ds_profiler.result import ModuleProfile, OperatorProfile, Work
from ds_profiler.tally import BACKWARD, FORWARD, PHASES, RECOMPUTE, Tally
from ds_profiler.watch import OUTSIDE, ModuleIndex


@dataclass(frozen=True)
class Measured:
    """What was measured, by module number."""

    forward_seconds: Mapping[int, float] = field(default_factory=dict)
    backward_seconds: Mapping[int, float] = field(default_factory=dict)
    saved_bytes: Mapping[int, int] = field(default_factory=dict)


def assemble(
    index: ModuleIndex,
    tally: Tally,
    measured: Measured,
    *,
    ignored: tuple[type[nn.Module], ...] = (),
) -> ModuleProfile:
    """The tree of the model; modules of an `ignored` type are left out with what they did."""
    return _Assembler(index, tally, measured, ignored).module("", index.modules[0])


def outside(tally: Tally) -> dict[str, Work]:
    """Work of no module of the model, by phase; phases without any are left out."""
    costs = {phase: tally.cost(OUTSIDE, phase) for phase in PHASES}
    return {phase: _work(cost) for phase, cost in costs.items() if cost.flops}


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """Number and bytes of the distinct parameters; partitioned ones at their full size."""
    sizes = [
        (getattr(parameter, "ds_numel", parameter.numel()), parameter.element_size())
        for parameter in module.parameters()
    ]
    return sum(size for size, _ in sizes), sum(size * width for size, width in sizes)


class _Assembler:
    def __init__(
        self,
        index: ModuleIndex,
        tally: Tally,
        measured: Measured,
        ignored: tuple[type[nn.Module], ...],
    ) -> None:
        self._index, self._tally, self._measured = index, tally, measured
        self._ignored = ignored
        self._seen: dict[int, str] = {}

    def module(self, name: str, module: nn.Module) -> ModuleProfile:
        self._seen[id(module)] = name
        number = self._index.number(module)
        assert number is not None
        children = tuple(
            self._child(f"{name}.{label}" if name else label, child)
            for label, child in _all_children(module)
            if not isinstance(child, self._ignored) and self._index.number(child) is not None
        )
        params, param_bytes = count_parameters(module)
        works = {phase: self._inclusive(number, phase, children) for phase in PHASES}
        calls = self._tally.calls.get(number, 0)
        return ModuleProfile(
            name=name,
            kind=type(module).__name__,
            extra=module.extra_repr().replace("\n", " "),
            calls=calls,
            params=params,
            param_bytes=param_bytes,
            forward=works[FORWARD],
            backward=works[BACKWARD],
            recompute=works[RECOMPUTE],
            forward_seconds=self._measured.forward_seconds.get(
                number, sum(child.forward_seconds for child in children)
            ),
            backward_seconds=self._measured.backward_seconds.get(
                number, sum(child.backward_seconds for child in children)
            ),
            activation_bytes=self._measured.saved_bytes.get(number, 0)
            + sum(child.activation_bytes for child in children),
            operators=self._operators(number),
            uncounted=dict(self._tally.unknown_at.get(number, {})),
            children=children,
        )

    def _child(self, name: str, child: nn.Module) -> ModuleProfile:
        if id(child) in self._seen:
            return ModuleProfile(name, type(child).__name__, shared_with=self._seen[id(child)])
        return self.module(name, child)

    def _inclusive(self, number: int, phase: str, children: tuple[ModuleProfile, ...]) -> Work:
        own = _work(self._tally.cost(number, phase))
        return sum((getattr(child, phase) for child in children), own)

    def _operators(self, number: int) -> tuple[OperatorProfile, ...]:
        return tuple(
            OperatorProfile(name, phase, calls, cost.macs, cost.flops)
            for phase in PHASES
            for name, (calls, cost) in self._tally.operators(number, phase).items()
        )


def _all_children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Children with every name they have here (`named_children` tells a shared one once).

    One that forward has made is nobody's: what it did is booked on the module that called it.
    """
    return [(name, child) for name, child in module._modules.items() if child is not None]


def _work(cost: Cost) -> Work:
    return Work(cost.macs, cost.flops)
