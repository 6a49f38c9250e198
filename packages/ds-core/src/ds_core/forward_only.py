"""The strategy of an engine without an optimizer: forward, backward, no update."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from ds_core.contracts import Divisor, LoadWhat, ShardReader, StepReport, TensorShard
from ds_core.errors import StateError
from ds_core.groups import Groups
from ds_core.naming import ParameterNames
from ds_core.precision import StaticLossScaler
from ds_core.reduction import RootScale
from ds_core.replicated import broadcast_module
from ds_core.state import ReplicatedLoader, replicated_shards


class ForwardOnly:
    """An `UpdateStrategy` for evaluation and reference models; gradients stay local."""

    def __init__(self, module: nn.Module, groups: Groups) -> None:
        self._module, self._groups = module, groups
        self._names = ParameterNames(module)
        self._root = RootScale(StaticLossScaler(), world_size=groups.data.world_size)
        self.optimizer = torch.optim.SGD([nn.Parameter(torch.empty(0))], lr=0.0)
        broadcast_module(module, groups)

    def backward(
        self, loss: Tensor, *, sync: bool, divisor: Divisor, retain_graph: bool = False
    ) -> None:
        root = self._root.for_pass(loss, divisor.root / self._groups.data.world_size)
        torch.autograd.backward(loss, root, retain_graph=retain_graph)

    def skip_pass(self) -> None:
        """Nothing to do: gradients stay local."""

    def step(self, *, divisor: Divisor) -> StepReport:
        raise StateError(
            "this engine has no optimizer; pass one to initialize() or name one in the "
            "configuration's 'optimizer' section"
        )

    def zero_grad(self) -> None:
        for param in self._names.names:
            param.grad = None
        self._root.reset()

    def gather(
        self, params: Iterable[nn.Parameter], *, modifier_rank: int | None = None
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def shards(self) -> Iterable[TensorShard]:
        return replicated_shards(self._module, self._names, {}, None, self._groups.data)

    def facts(self) -> dict[str, Any]:
        return {}

    def load(self, reader: ShardReader, facts: Mapping[str, Any], *, what: LoadWhat) -> None:
        ReplicatedLoader(self._module, self._names, {}, None).load(reader, facts, what)

    def held(self, param: nn.Parameter) -> nn.Parameter:
        """The parameter itself: nothing stands in for it."""
        return param

    def close(self) -> None:
        self.zero_grad()
