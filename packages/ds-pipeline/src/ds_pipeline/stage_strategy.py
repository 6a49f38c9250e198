"""The update strategy of one stage, as one part of a model that is cut over stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ds_core.comm import Communicator
from ds_core.contracts import (
    Divisor,
    LoadWhat,
    ShardReader,
    StepReport,
    TensorShard,
    UpdateStrategy,
)
from ds_core.errors import RankMismatchError
from ds_core.naming import ParameterNames, named_buffers
from ds_pipeline.module import PipelineModule


class StageStrategy:
    """An `UpdateStrategy` over that of a stage: one checkpoint and one verdict for all stages.

    Saves each parameter once, tied ones by their first stage, with names that do not depend on
    the number of stages; loads what this stage needs of a checkpoint that any number wrote.

    Args:
        inner: updates this stage's parameters over the stage's data-parallel ranks.
        module: the stage.
        replica: the ranks that hold one replica together.
    """

    def __init__(
        self, inner: UpdateStrategy, module: PipelineModule, replica: Communicator
    ) -> None:
        self.inner, self._module, self._replica = inner, module, replica
        self.optimizer = inner.optimizer
        self.root = 1.0
        names = ParameterNames(module)
        self._known = {*names.names.values(), *named_buffers(module)}
        self._known |= {alias for aliases in names.aliases.values() for alias in aliases}
        copies = module.ties.copies()
        self._copies = {name for param, name in names.names.items() if param in copies}
        owned = {tie.key for tie in module.ties.ties if not tie.owner}
        self._copies |= {
            name for name in named_buffers(module) if name.split(".")[:2] in _tied(owned)
        }

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def loss_scale(self) -> float:
        """The scale of the next backward pass."""
        return float(getattr(self.inner, "scaler_scale", 1.0))

    def backward(
        self, loss: Tensor, *, sync: bool, divisor: Divisor, retain_graph: bool = False
    ) -> None:
        """Accumulate the gradients of a loss that the last stage has."""
        torch.autograd.backward(loss, torch.full_like(loss, self.root), retain_graph=retain_graph)

    def skip_pass(self) -> None:
        self.inner.skip_pass()

    def step(self, *, divisor: Divisor) -> StepReport:
        """Sum tied gradients over stages, then step; all stages update or none does."""
        self._module.ties.reduce()
        report = self.inner.step(divisor=divisor.times(self.root))
        if not report.skipped:
            return report
        everyone = self._replica.all_gather_object(report.nonfinite)
        names = dict.fromkeys(name for found in everyone for name in found)
        return replace(report, nonfinite=tuple(names))

    def zero_grad(self) -> None:
        self._module.ties.forget()
        self.inner.zero_grad()

    def gather(
        self, params: Iterable[nn.Parameter], *, modifier_rank: int | None = None
    ) -> AbstractContextManager[None]:
        return self.inner.gather(params, modifier_rank=modifier_rank)

    def shards(self) -> Iterable[TensorShard]:
        for shard in self.inner.shards():
            if shard.name not in self._copies:
                yield shard

    def facts(self) -> dict[str, Any]:
        """Facts of all stages together; all ranks call this."""
        facts = dict(self.inner.facts())
        everyone: list[dict[str, Any]] = self._replica.all_gather_object(facts)
        groups = [other.get("param_groups", []) for other in everyone]
        if any(len(found) != len(groups[0]) for found in groups):
            raise RankMismatchError(
                f"stages have {[len(found) for found in groups]} parameter groups; give every "
                "stage the same groups, empty ones included"
            )
        if "param_groups" in facts:
            facts["param_groups"] = [_merged(parts) for parts in zip(*groups, strict=True)]
        numbers: dict[str, Any] = {}
        for other in everyone:
            numbers.update(other.get("numbers", {}))
        return facts | {"numbers": numbers}

    def load(self, reader: ShardReader, facts: Mapping[str, Any], *, what: LoadWhat) -> None:
        anywhere: set[str] = set().union(*self._replica.all_gather_object(self._known))
        self.inner.load(_StageReader(reader, anywhere - self._known), facts, what=what)

    def close(self) -> None:
        self._module.ties.close()
        self.inner.close()


def _tied(keys: Iterable[str]) -> list[list[str]]:
    return [["tied_modules", key] for key in keys]


def _merged(parts: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """One parameter group out of what each stage has of it."""
    names = dict.fromkeys(name for part in parts for name in part["params"])
    return {**parts[0], "params": list(names)}


class _StageReader:
    """A checkpoint as one stage sees it: without the names that only other stages know."""

    def __init__(self, reader: ShardReader, others: set[str]) -> None:
        self._others = others
        self.slots, self.shape = reader.slots, reader.shape
        self.dtype, self.read = reader.dtype, reader.read
        self._names = reader.names

    def names(self) -> Iterable[str]:
        return (name for name in self._names() if name not in self._others)
