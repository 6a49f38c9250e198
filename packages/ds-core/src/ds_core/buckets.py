"""Gradients in flat buckets, reduced while the backward pass still runs.

The scheme is that of Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel
Training" (VLDB 2020): parameters are bucketed in reverse order of registration, a bucket is
reduced as soon as its last gradient is there, and buckets are launched in one fixed order on all
ranks. Each bucket carries one more element per parameter that says "used here", so that a
parameter which no rank used can be told apart from one with a zero gradient at no extra message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ds_core.contracts.store import Pending
from ds_core.errors import StateError

DEFAULT_BUCKET_ELEMENTS = 6_250_000
"""25 MiB of fp32, the size DDP found good."""


def plan_buckets(numels: Sequence[int], max_elements: int) -> list[list[int]]:
    """Indices of parameters by bucket, last parameter first.

    A bucket closes when the next parameter would take it beyond `max_elements`; a parameter larger
    than that has a bucket of its own.

    >>> plan_buckets([4, 3, 2, 9], 5)
    [[3], [2, 1], [0]]
    """
    buckets: list[list[int]] = []
    filled = 0
    for index in reversed(range(len(numels))):
        if not buckets or filled + numels[index] > max_elements:
            buckets.append([])
            filled = 0
        buckets[-1].append(index)
        filled += numels[index]
    return buckets


@dataclass(eq=False)
class Bucket:
    """Parameters of one dtype whose gradients lie in one flat buffer.

    Attributes:
        params: in the order they lie in the buffer.
        buffer: gradients, padded to a multiple of `align`, then one "used" flag a parameter.
        views: each parameter's part of the buffer, in its shape.
        numel: elements of the gradients with padding, without flags.
    """

    index: int
    params: list[nn.Parameter]
    buffer: Tensor
    views: list[Tensor]
    numel: int
    missing: int = 0
    work: Pending | None = None
    message: Tensor | None = field(default=None, repr=False)

    @property
    def gradients(self) -> Tensor:
        """The flat gradients without the flags."""
        return self.buffer[: self.numel]

    @property
    def flags(self) -> Tensor:
        """One element a parameter: zero if nobody used it."""
        return self.buffer[self.numel :]


def make_buckets(
    params: Sequence[nn.Parameter],
    *,
    max_elements: int,
    accumulate_in: Callable[[torch.dtype], torch.dtype],
    align: int = 1,
) -> list[Bucket]:
    """Allocate buckets for `params`, those of each dtype and device apart, last parameter first."""
    kinds: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for param in params:
        kinds.setdefault((param.dtype, param.device), []).append(param)
    buckets: list[Bucket] = []
    for (dtype, device), members in kinds.items():
        for indices in plan_buckets([param.numel() for param in members], max_elements):
            chosen = [members[index] for index in indices]
            used = sum(param.numel() for param in chosen)
            numel = -(-used // align) * align
            buffer = torch.zeros(numel + len(chosen), dtype=accumulate_in(dtype), device=device)
            parts = torch.split(buffer[:used], [param.numel() for param in chosen])
            views = [part.view(param.shape) for part, param in zip(parts, chosen, strict=True)]
            buckets.append(Bucket(len(buckets), chosen, buffer, views, numel))
    return buckets


class GradientBuckets:
    """Accumulates gradients of a window in buckets and reduces each once, in a fixed order.

    A window begins empty. Every backward pass, from wherever it is called, adds to it. A pass
    between `begin_sync` and `finish_sync` is the one that overlaps reduction with computation.

    Args:
        buckets: from `make_buckets`; this object owns their buffers from now on.
        launch: starts the reduction of one bucket over the ranks (a sum) and returns the work.
        world_size: number of ranks summed over.
        names: names of parameters for messages.
        overlap: launch buckets during backward; false launches all of them after it.
    """

    def __init__(
        self,
        buckets: list[Bucket],
        *,
        launch: Callable[[Bucket], Pending],
        world_size: int,
        names: dict[nn.Parameter, str],
        overlap: bool = True,
    ) -> None:
        self.buckets = buckets
        self._launch, self._world_size = launch, world_size
        self._names, self._overlap = names, overlap
        self._place = {
            param: (bucket, slot) for bucket in buckets for slot, param in enumerate(bucket.params)
        }
        self._used: set[nn.Parameter] = set()
        self._fired: dict[nn.Parameter, int] = {}
        self._expected: dict[nn.Parameter, int] | None = None
        self._next = len(buckets)
        self._factor = 1.0
        self._syncing = False
        self.reduced = False
        self.dirty = False
        self._handles = [
            _on_accumulated(param, self._watcher(bucket, slot))
            for param, (bucket, slot) in self._place.items()
        ]

    def begin_pass(self, *, sync: bool) -> None:
        """A backward pass is about to start; with `sync` it is the window's last."""
        if self.reduced:
            self._undo_reduction()
        self._syncing = sync
        if not sync:
            return
        self._fired.clear()
        self._next = 0
        for bucket in self.buckets:
            bucket.missing = len(bucket.params)

    @property
    def syncing(self) -> bool:
        """True between `begin_pass(sync=True)` and `finish_sync`."""
        return self._syncing

    def begin_late_sync(self) -> None:
        """Close a window whose passes did not know that they were the last."""
        self._fired.clear()
        self._next = 0

    def scale_local(self, factor: float) -> None:
        """Multiply this rank's sums, before they are reduced."""
        if factor != 1.0:
            for param in self._used:
                self.gradient(param).mul_(factor)

    def finish_sync(self, factor: float = 1.0) -> None:
        """Reduce what is left, wait for all, and multiply the sums by `factor`."""
        self._syncing = False
        self._learn_counts()
        while self._next < len(self.buckets):
            self._launch_next()
        for bucket in self.buckets:
            if bucket.work is not None:
                bucket.work.wait()
                bucket.work = None
            if factor != 1.0:
                bucket.gradients.mul_(factor)
        self._factor = factor
        self._show_gradients_of_others()
        self.reduced, self.dirty = True, False

    def _show_gradients_of_others(self) -> None:
        """Let `param.grad` be seen where only other ranks used the parameter."""
        if len(self._used) == len(self._place):
            return
        for param in self._place.keys() - self._used - self.unused():
            view = self.gradient(param)
            param.grad = view if view.dtype == param.dtype else None

    def abandon(self) -> None:
        """A backward pass raised: forget the window."""
        self._syncing = False
        for bucket in self.buckets:
            bucket.work = None
        self.clear()

    def unused(self) -> set[nn.Parameter]:
        """Parameters without a gradient on any rank; valid after `finish_sync`."""
        if not self.buckets:
            return set()
        flags = torch.cat([bucket.flags.to(torch.float32) for bucket in self.buckets]).tolist()
        params = (param for bucket in self.buckets for param in bucket.params)
        return {param for param, flag in zip(params, flags, strict=True) if flag == 0}

    def gradient(self, param: nn.Parameter) -> Tensor:
        """The accumulated gradient of `param`: a view into its bucket."""
        bucket, slot = self._place[param]
        return bucket.views[slot]

    def __contains__(self, param: object) -> bool:
        return param in self._place

    def clear(self) -> None:
        """Begin a new window; buffers are overwritten by the first gradient, not zeroed here."""
        for param in self._place:
            param.grad = None
        self._used.clear()
        self.reduced = self.dirty = False

    def close(self) -> None:
        """Remove the hooks and let go of gradients."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.clear()

    def _watcher(self, bucket: Bucket, slot: int) -> Callable[[nn.Parameter], None]:
        """What is called with one parameter at each gradient; most often there is nothing to do."""

        def watch(param: nn.Parameter) -> None:
            if self._syncing or self.reduced or param.grad is not bucket.views[slot]:
                self._arrived(param)
            else:  # autograd has added to the bucket itself
                self.dirty = True

        return watch

    def _arrived(self, param: nn.Parameter) -> None:
        """Autograd has put a gradient of this pass into `param.grad`."""
        grad = param.grad
        assert grad is not None
        if self.reduced:
            raise StateError(
                f"'{self._names.get(param, '?')}' got a gradient from a plain backward() after the "
                "engine's backward() had closed the window; call step() first, or use "
                "engine.backward() for both"
            )
        bucket, slot = self._place[param]
        self._accumulate(param, grad, bucket.views[slot])
        self._used.add(param)
        if self._syncing:
            self._count(param, bucket)
        else:
            self.dirty = True

    def _accumulate(self, param: nn.Parameter, grad: Tensor, view: Tensor) -> None:
        if view.dtype == param.dtype:
            # Autograd adds to `param.grad` itself: a tensor other than the view is the whole sum.
            if grad.data_ptr() != view.data_ptr():
                view.copy_(grad)
                param.grad = view
            return
        if param in self._used:
            view.add_(grad)
        else:
            view.copy_(grad)
        param.grad = None

    def _count(self, param: nn.Parameter, bucket: Bucket) -> None:
        """Launch buckets that became full, in order."""
        fired = self._fired.get(param, 0) + 1
        self._fired[param] = fired
        if bucket.index < self._next:
            raise StateError(
                f"gradient of '{self._names.get(param, '?')}' arrived again after its bucket was "
                "reduced: it is used more often in this step than in the first one, under "
                "reentrant activation checkpointing. Use use_reentrant=False, or switch the "
                "overlap of communication off"
            )
        if not self._overlap or self._expected is None:
            return
        if fired == self._expected.get(param, 1):
            bucket.missing -= 1
        while self._next < len(self.buckets) and self.buckets[self._next].missing == 0:
            self._launch_next()

    def _learn_counts(self) -> None:
        """Remember how often parameters fire: more than once under reentrant checkpointing."""
        if self._expected is None:
            self._expected = {}
        for param, fired in self._fired.items():
            if fired > self._expected.get(param, 1):
                self._expected[param] = fired

    def _launch_next(self) -> None:
        bucket = self.buckets[self._next]
        self._next += 1
        absent = [slot for slot, param in enumerate(bucket.params) if param not in self._used]
        for slot in absent:
            bucket.views[slot].zero_()
        if absent:
            present = [param in self._used for param in bucket.params]
            bucket.flags.copy_(torch.tensor(present, dtype=bucket.buffer.dtype))
        else:
            bucket.flags.fill_(1)
        bucket.work = self._launch(bucket)

    def _undo_reduction(self) -> None:
        """Make sums of the whole group count once when they are summed again."""
        for bucket in self.buckets:
            bucket.gradients.div_(self._world_size * self._factor)
        for param in self._place.keys() - self.unused():
            self._used.add(param)
            view = self.gradient(param)
            param.grad = view if view.dtype == param.dtype else None
        self.reduced = False


def _on_accumulated(param: nn.Parameter, hook: Callable[[nn.Parameter], None]) -> RemovableHandle:
    handle: RemovableHandle = param.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    return handle


def trained_params(groups: Iterable[dict[str, object]]) -> list[nn.Parameter]:
    """The distinct parameters of optimizer groups that require a gradient, in order."""
    seen: dict[nn.Parameter, None] = {}
    for group in groups:
        for param in group["params"]:  # type: ignore[attr-defined]
            if param.requires_grad:
                seen.setdefault(param)
    return list(seen)
