"""Parameters that are reduced, owned and updated together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ds_core.precision import PrecisionSettings
from ds_core.precision.master import LOW_PRECISION
from ds_zero.plan import ALIGN, Slice, buckets, plan, plan_each, share


@dataclass(frozen=True, slots=True)
class Fact:
    """What is fixed about one parameter.

    Attributes:
        name: its first name in the user's module.
        aliases: its further names.
        shape: its whole shape, also where the parameter itself is empty.
        index: its place in the table of all parameters.
    """

    name: str
    aliases: tuple[str, ...]
    shape: torch.Size
    index: int

    @property
    def numel(self) -> int:
        return self.shape.numel()


Layout = Callable[[Sequence[int], int, int], tuple[Slice, ...]]
"""Sizes, rank and world size to the slices in that rank's share."""


def end_to_end(sizes: Sequence[int], rank: int, world: int) -> tuple[Slice, ...]:
    """Stages 1 and 2: tensors lie one after the other and are cut once."""
    return plan(sizes, rank, world, align=ALIGN)


def one_by_one(sizes: Sequence[int], rank: int, world: int) -> tuple[Slice, ...]:
    """Stage 3: each tensor is cut for itself."""
    return plan_each(sizes, rank, world)


@dataclass(eq=False)
class Unit:
    """Parameters of one optimizer group and format, and this rank's share of them.

    Attributes:
        index: order of reduction, the same on all ranks.
        group: index of the optimizer group.
        params: in the order they lie in flat memory.
        share: elements a rank owns, padding included.
        slices: what they are; `Slice.index` counts within `params`.
        dtype: format of the parameters.
        accumulate: format of their gradients' sum.
        weights: this rank's share of the parameters, flat; the memory they live in.
        weights_leave: that memory does not stay between uses.
    """

    index: int
    group: int
    params: tuple[nn.Parameter, ...]
    facts: tuple[Fact, ...]
    share: int
    slices: tuple[Slice, ...]
    dtype: torch.dtype
    accumulate: torch.dtype
    device: torch.device
    weights: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    weights_leave: bool = False

    @property
    def label(self) -> str:
        """What messages call the unit."""
        more = f" and {len(self.facts) - 1} more" if len(self.facts) > 1 else ""
        return f"{self.facts[0].name}{more}"


def make_units(
    groups: Sequence[Mapping[str, Any]],
    facts: Mapping[nn.Parameter, Fact],
    *,
    rank: int,
    world: int,
    limit: int,
    layout: Layout,
    precision: PrecisionSettings,
    deal: bool = False,
) -> list[Unit]:
    """Bucket the trained parameters of each group and format, the last parameter first.

    Args:
        limit: most elements of a unit; a larger parameter has one of its own.
        deal: deal large and small tensors out in turn instead of keeping their order.
    """
    units: list[Unit] = []
    for number, members in _kinds(groups):
        ordered = sorted(members, key=lambda param: -facts[param].index)
        if deal:
            ordered = _dealt(ordered, facts)
        sizes = [facts[param].numel for param in ordered]
        for indices in buckets(sizes, limit):
            chosen = tuple(ordered[index] for index in indices)
            picked = [sizes[index] for index in indices]
            dtype = chosen[0].dtype
            unit = Unit(
                index=len(units),
                group=number,
                params=chosen,
                facts=tuple(facts[param] for param in chosen),
                share=_share(picked, world, layout),
                slices=tuple(s for s in layout(picked, rank, world) if s.length),
                dtype=dtype,
                accumulate=precision.accumulate_in(dtype),
                device=chosen[0].device,
            )
            units.append(unit)
    return _in_order_of_backward(units)


def _share(sizes: Sequence[int], world: int, layout: Layout) -> int:
    if layout is one_by_one:
        return sum(share(size, world) for size in sizes)
    return share(sum(sizes), world, align=ALIGN)


def _kinds(
    groups: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[int, list[nn.Parameter]]]:
    for number, group in enumerate(groups):
        kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
        for param in group["params"]:
            if param.requires_grad:
                kinds.setdefault((param.dtype, param.device), []).append(param)
        for members in kinds.values():
            yield number, members


def _dealt(params: list[nn.Parameter], facts: Mapping[nn.Parameter, Fact]) -> list[nn.Parameter]:
    by_size = sorted(params, key=lambda param: facts[param].numel)
    low, high = 0, len(by_size) - 1
    dealt = []
    while low <= high:
        dealt.append(by_size[high])
        if low < high:
            dealt.append(by_size[low])
        low, high = low + 1, high - 1
    return dealt


def _in_order_of_backward(units: list[Unit]) -> list[Unit]:
    """Units are reduced in the order in which backward completes them."""
    units.sort(key=lambda unit: -min(fact.index for fact in unit.facts))
    for index, unit in enumerate(units):
        unit.index = index
    return units


def needs_master(dtype: torch.dtype, precision: PrecisionSettings) -> bool:
    """Whether the optimizer updates an fp32 copy of parameters of `dtype`."""
    return precision.master_weights and dtype in LOW_PRECISION


def trained(groups: Iterable[Mapping[str, Any]]) -> set[nn.Parameter]:
    """Parameters of optimizer groups that require a gradient."""
    return {param for group in groups for param in group["params"] if param.requires_grad}
