"""Joining counts, times and sizes into a profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import nn

from ds_profiler.cost import Cost
from ds_profiler.modules import parameters_of
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
    return _Assembler(index, tally, measured, ignored).tree(index.modules[0])


def outside(tally: Tally) -> dict[str, Work]:
    """Work of no module of the model, by phase; phases without any are left out."""
    costs = {phase: tally.cost(OUTSIDE, phase) for phase in PHASES}
    return {phase: _work(cost) for phase, cost in costs.items() if cost.flops}


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """Number and bytes of the distinct parameters; partitioned ones at their full size."""
    sizes = [_size(parameter) for parameter in parameters_of(module)]
    return sum(number for number, _ in sizes), sum(size for _, size in sizes)


@dataclass(eq=False)
class _Node:
    """A place in the tree of modules, by a name.

    Attributes:
        children: what is told of below it.
        hidden: children that are not told of; only their parameters count.
        shared_with: the name this module was met by before.
        sizes: elements and bytes of each distinct parameter in it.
        total: their sum.
    """

    name: str
    module: nn.Module
    children: list[_Node] = field(default_factory=list)
    hidden: list[nn.Module] = field(default_factory=list)
    shared_with: str | None = None
    sizes: dict[nn.Parameter, tuple[int, int]] = field(default_factory=dict)
    total: tuple[int, int] = (0, 0)
    profile: ModuleProfile | None = None

    def gather_sizes(self) -> None:
        """Take over the children's, the largest as it is: what is below is not gone through."""
        largest = max(self.children, key=lambda child: len(child.sizes), default=None)
        if largest is not None:
            self.sizes, self.total = largest.sizes, largest.total
        for child in self.children:
            if child is not largest:
                self._add(child.sizes)
        whole = [self.module] if self.shared_with is not None else self.hidden
        params = [p for module in whole for p in parameters_of(module)]
        params += [p for p in self.module._parameters.values() if p is not None]
        self._add({param: _size(param) for param in params})

    def _add(self, sizes: dict[nn.Parameter, tuple[int, int]]) -> None:
        for param, (number, size) in sizes.items():
            if param not in self.sizes:
                self.sizes[param] = number, size
                self.total = self.total[0] + number, self.total[1] + size


def _size(param: nn.Parameter) -> tuple[int, int]:
    number = getattr(param, "ds_numel", param.numel())
    return number, number * param.element_size()


class _Assembler:
    """Builds the tree from its leaves up, in a loop: models nest deeper than Python calls."""

    def __init__(
        self,
        index: ModuleIndex,
        tally: Tally,
        measured: Measured,
        ignored: tuple[type[nn.Module], ...],
    ) -> None:
        self._index, self._tally, self._measured = index, tally, measured
        self._ignored = ignored

    def tree(self, root: nn.Module) -> ModuleProfile:
        nodes = self._nodes(root)
        for node in reversed(nodes):
            node.gather_sizes()
            node.profile = self._profile(node)
        made = nodes[0].profile
        assert made is not None
        return made

    def _nodes(self, root: nn.Module) -> list[_Node]:
        """All places, parents before their children."""
        seen: dict[nn.Module, str] = {}
        left, nodes = [_Node("", root)], []
        while left:
            node = left.pop()
            nodes.append(node)
            node.shared_with = seen.get(node.module)
            if node.shared_with is not None:
                continue
            seen[node.module] = node.name
            for label, child in _all_children(node.module):
                if isinstance(child, self._ignored) or self._index.number(child) is None:
                    node.hidden.append(child)
                else:
                    name = f"{node.name}.{label}" if node.name else label
                    node.children.append(_Node(name, child))
            left += reversed(node.children)
        return nodes

    def _profile(self, node: _Node) -> ModuleProfile:
        name, module = node.name, node.module
        if node.shared_with is not None:
            return ModuleProfile(name, type(module).__name__, shared_with=node.shared_with)
        number = self._index.number(module)
        assert number is not None
        children = tuple(child.profile for child in node.children if child.profile is not None)
        params, param_bytes = node.total
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
