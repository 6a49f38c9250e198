"""Stage 0: every rank holds everything, gradients are all-reduced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ds_core.buckets import (
    DEFAULT_BUCKET_ELEMENTS,
    GradientBuckets,
    make_buckets,
    trained_params,
)
from ds_core.clip import total_norm
from ds_core.contracts import Divisor, LoadWhat, Pending, ShardReader, StepReport, TensorShard
from ds_core.edits import edits_of
from ds_core.gate import StepGate
from ds_core.groups import Groups
from ds_core.naming import FrozenParams, ParameterNames, named_buffers
from ds_core.optimizers import MakeOptimizer, build_optimizer
from ds_core.precision import MasterWeights, PrecisionSettings
from ds_core.reduction import Message, RootScale, is_model_parallel
from ds_core.sparse import SparseGradients, sparse_params
from ds_core.state import ReplicatedLoader, optimizer_facts, replicated_shards


@dataclass(frozen=True)
class ReplicatedSettings:
    """How gradients are reduced.

    Attributes:
        bucket_elements: elements of a bucket; changes speed, never results.
        overlap: reduce while backward runs.
        predivide: divide gradients by this before they are summed, and by the rest afterwards;
            None divides before in fp32 and bf16, after in fp16 (whose range is small).
        sparse_gradients: reduce the weights of embeddings by rows even if they are dense.
        max_norm: clip the global gradient norm to this; 0 does not clip.
    """

    bucket_elements: int = DEFAULT_BUCKET_ELEMENTS
    overlap: bool = True
    predivide: float | None = None
    sparse_gradients: bool = False
    max_norm: float = 0.0


class Replicated:
    """An `UpdateStrategy`: replicas whose gradients are averaged by bucketed all-reduce.

    Args:
        module: already on its device and in its compute dtype; weights and buffers of data-parallel
            rank 0 are broadcast to all.
        param_groups: groups of the module's parameters.
        optimizer: an optimizer object over these, or a factory that is given groups of what is
            updated (fp32 masters for low-precision parameters).
        groups: the process groups.
        precision: formats; `originals` are fp32 values from before the module was cast.
    """

    def __init__(
        self,
        module: nn.Module,
        param_groups: list[dict[str, Any]],
        optimizer: torch.optim.Optimizer | MakeOptimizer,
        *,
        groups: Groups,
        precision: PrecisionSettings,
        settings: ReplicatedSettings | None = None,
        originals: Mapping[nn.Parameter, Tensor] | None = None,
    ) -> None:
        settings = settings or ReplicatedSettings()
        self._module, self._groups = module, groups
        self._names = ParameterNames(module)
        params = trained_params(param_groups)
        self._frozen = FrozenParams(param_groups, self._names)
        self._gate = StepGate(precision.make_scaler(), max_norm=settings.max_norm)
        self._root = RootScale(
            self._gate.scaler, world_size=groups.data.world_size, predivide=settings.predivide
        )
        broadcast_module(module, groups)
        self._master = MasterWeights(params, originals=originals, enabled=precision.master_weights)
        self._held = {param: self._master[param] for param in params}
        self.optimizer = build_optimizer(param_groups, optimizer, self._master.__getitem__)
        sparse = set(sparse_params(module, dense_too=settings.sparse_gradients))
        self._sparse = SparseGradients([p for p in params if p in sparse], groups.data)
        self._message = Message(groups.data, precision.communication_dtype, self._names.names)
        self._buckets = GradientBuckets(
            make_buckets(
                [param for param in params if param not in sparse],
                max_elements=settings.bucket_elements,
                accumulate_in=precision.accumulate_in,
            ),
            launch=self._message.all_reduce,
            world_size=groups.data.world_size,
            names=self._names.names,
            overlap=settings.overlap,
        )
        self._params = params

    @property
    def scaler_scale(self) -> float:
        """The loss scale the next backward pass uses."""
        return self._gate.scaler.scale

    def backward(
        self, loss: Tensor, *, sync: bool, divisor: Divisor, retain_graph: bool = False
    ) -> None:
        root = self._root.for_pass(loss, divisor.root)
        if self._buckets.reduced:
            self._sparse.undo()
        self._buckets.begin_pass(sync=sync)
        try:
            torch.autograd.backward(loss, root, retain_graph=retain_graph)
        except BaseException:
            self._buckets.abandon()
            self._root.reset()
            raise
        if sync:
            self._reduce(divisor)

    def skip_pass(self) -> None:
        """Nothing to do: ranks meet once a window."""

    def step(self, *, divisor: Divisor) -> StepReport:
        self._frozen.check()
        if not self._buckets.reduced or self._buckets.dirty:
            self._reduce(divisor)
        grads = self._hand_over()
        factor, report = self._gate.admit(self._norm(grads), self._nonfinite)
        if not report.skipped:
            if factor != 1.0 and grads:
                torch._foreach_mul_([_values(grad) for _, grad in grads], factor)
            self.optimizer.step()
            self._master.refresh_params()
        self.zero_grad()
        return report

    def zero_grad(self) -> None:
        for param in self._params:
            param.grad = None
            self._held[param].grad = None
        self._buckets.clear()
        self._root.reset()

    @contextmanager
    def gather(
        self, params: Iterable[nn.Parameter], *, modifier_rank: int | None = None
    ) -> Iterator[None]:
        chosen = self._names.ordered(params)
        with edits_of(self._groups.data, chosen, modifier_rank):
            yield
        if modifier_rank is None:
            return
        with torch.no_grad():
            for param in chosen:
                held = self._held.get(param, param)
                if held is not param:
                    held.copy_(param)

    def shards(self) -> Iterable[TensorShard]:
        return replicated_shards(
            self._module, self._names, self._held, self.optimizer, self._groups.data
        )

    def facts(self) -> dict[str, Any]:
        facts = optimizer_facts(self.optimizer, self._names, self._held)
        return facts | {"scaler": self._gate.scaler.state_dict()}

    def load(self, reader: ShardReader, facts: Mapping[str, Any], *, what: LoadWhat) -> None:
        ReplicatedLoader(self._module, self._names, self._held, self.optimizer).load(
            reader, facts, what
        )
        if what.weights:
            self._master.refresh_params()
        if what.optimizer and "scaler" in facts:
            self._gate.scaler.load_state_dict(facts["scaler"])
        self.zero_grad()

    def close(self) -> None:
        self.zero_grad()
        self._buckets.close()

    def gradient(self, param: nn.Parameter) -> Tensor | None:
        """The gradient of `param` in the open window, still scaled by the loss scale."""
        if param not in self._buckets:
            return param.grad
        return None if param in self._buckets.unused() else self._buckets.gradient(param)

    def held(self, param: nn.Parameter) -> nn.Parameter:
        """What the optimizer updates for `param`: its fp32 master, or itself."""
        return self._held.get(param, param)

    def _reduce(self, divisor: Divisor) -> None:
        local = self._root.missing(divisor.root)
        self._buckets.scale_local(local)
        factor = self._root.remaining(divisor.mean)
        if not self._buckets.reduced and not self._buckets.syncing:
            self._buckets.begin_late_sync()
        self._buckets.finish_sync(factor)
        self._sparse.reduce(factor, local=local)

    def _hand_over(self) -> list[tuple[nn.Parameter, Tensor]]:
        """Give what the optimizer updates its gradient; none to parameters nobody used."""
        unused = self._buckets.unused() | self._sparse.unused()
        handed = []
        for param in self._params:
            held = self._held[param]
            if param in self._buckets:
                grad = None if param in unused else self._buckets.gradient(param)
            else:
                grad = param.grad
            if grad is not None and grad.dtype != held.dtype:
                grad = grad.to(held.dtype)
            held.grad = grad
            if held is not param:
                param.grad = None
            if grad is not None:
                handed.append((param, grad))
        return handed

    def _norm(self, grads: list[tuple[nn.Parameter, Tensor]]) -> float:
        shared: list[Tensor] = []
        sharded: list[Tensor] = []
        for param, grad in grads:  # one by one: a norm by bucket would depend on the bucket size
            (sharded if is_model_parallel(param) else shared).append(_values(grad))
        return total_norm(shared, sharded, self._groups.model)

    def _nonfinite(self) -> tuple[str, ...]:
        bad = []
        for param in self._params:
            grad = self._held[param].grad
            if grad is None:
                continue
            values = _values(grad)
            if not torch.isfinite(values).all():
                bad.append(self._names.names.get(param, "?"))
        return tuple(bad)


def broadcast_module(module: nn.Module, groups: Groups) -> None:
    """Give every data-parallel rank the weights and buffers of rank 0."""
    if groups.data.world_size == 1:
        return
    tensors: list[Tensor] = [*ParameterNames(module).names, *named_buffers(module).values()]
    with torch.no_grad():
        work: list[Pending] = []
        for tensor in tensors:
            whole = tensor.data if tensor.is_contiguous() else tensor.data.contiguous()
            pending = groups.data.broadcast(whole, 0, label="initial weights", async_op=True)
            work.append(pending)
            if whole.data_ptr() != tensor.data_ptr():
                pending.wait()
                tensor.data.copy_(whole)
        for pending in work:
            pending.wait()


def _values(grad: Tensor) -> Tensor:
    """What there is to measure and scale of a gradient, sparse ones being coalesced."""
    return grad._values() if grad.is_sparse else grad


__all__ = ["Replicated", "ReplicatedSettings", "broadcast_module"]
