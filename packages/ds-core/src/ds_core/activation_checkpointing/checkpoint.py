"""Forget the activations of a function, and compute them again in the backward pass."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.checkpoint
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from ds_core.activation_checkpointing.keep import Keeper
from ds_core.activation_checkpointing.rng import RNGTracker
from ds_core.errors import ConfigError, StateError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """What happens to the inputs of a checkpoint, which are all that is kept of it.

    Attributes:
        partition_activations: each rank of `partition_group` keeps its part only; they are
            gathered before they are needed. For ranks that hold the same activations.
        cpu_checkpointing: keep them in host memory.
        contiguous_memory_optimization: keep them in buffers that are made once.
        number_checkpoints: checkpoints that such a buffer holds.
        synchronize_checkpoint_boundary: wait for the device before and after each run.
        profile: log the time of each run (and wait for the device, to be able to tell).
        use_reentrant: run the backward pass inside of the checkpoint's own, as PyTorch's older
            kind does. Either kind gives the same gradients.
    """

    partition_activations: bool = False
    cpu_checkpointing: bool = False
    contiguous_memory_optimization: bool = False
    number_checkpoints: int | None = None
    synchronize_checkpoint_boundary: bool = False
    profile: bool = False
    use_reentrant: bool = False


class ActivationCheckpointer:
    """Calls functions so that only their inputs are kept for the backward pass.

    Random numbers of the second run equal those of the first: on the CPU, on the device of the
    inputs, and in `rng`. Independent instances do not know of each other.
    """

    def __init__(
        self,
        options: CheckpointOptions | None = None,
        *,
        partition_group: dist.ProcessGroup | None = None,
        rng: RNGTracker | None = None,
    ) -> None:
        """`partition_group`: the ranks that share a model; needed only to partition over them."""
        self.options = options or CheckpointOptions()
        self.rng = rng or RNGTracker()
        self._inside = _Inside()
        slots = None
        if self.options.contiguous_memory_optimization:
            slots = self.options.number_checkpoints
            if slots is None:
                raise ConfigError(
                    "contiguous_memory_optimization needs number_checkpoints: "
                    "the checkpoints that one forward pass makes"
                )
        self._keeper = Keeper(
            group=partition_group if self.options.partition_activations else None,
            on_cpu=self.options.cpu_checkpointing,
            slots=slots,
        )

    def checkpoint(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`function(*args, **kwargs)`, whose activations are computed again when needed.

        Tensors may lie anywhere in the arguments and results: in tuples, lists and dicts. Without
        gradients this is a plain call.
        """
        if not torch.is_grad_enabled():
            return self.timed("forward", function, args, kwargs)
        leaves, structure = tree_flatten((args, kwargs))
        where = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        tensors = [leaves[i] for i in where]
        rest = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]

        def call(*given: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
            filled = list(rest)
            for index, tensor in zip(where, given, strict=True):
                filled[index] = tensor
            restored: tuple[tuple[Any, ...], dict[str, Any]] = tree_unflatten(filled, structure)
            return restored

        run = _Run(self, function, call)
        return (
            self._reentrant(run, tensors)
            if self.options.use_reentrant
            else self._plain(run, tensors)
        )

    __call__ = checkpoint

    def _plain(self, run: _Run, tensors: list[Tensor]) -> Any:
        # The second run goes to the end of the function, so that hooks of modules (which gather
        # and release parameters, or communicate) run as in the first.
        whole = torch.utils.checkpoint.set_checkpoint_early_stop(False)
        with whole, self._keeping():
            return torch.utils.checkpoint.checkpoint(run, *tensors, use_reentrant=False)

    def _reentrant(self, run: _Run, tensors: list[Tensor]) -> Any:
        # The first input makes parameters of `function` get gradients even if no other input
        # needs one; PyTorch alone would leave them without.
        anchor = torch.empty(0, requires_grad=True)
        versions = [tensor._version for tensor in tensors]
        with self._keeping():
            output = torch.utils.checkpoint.checkpoint(
                run.after_anchor, anchor, *tensors, use_reentrant=True
            )
        if self._keeper.active and versions != [tensor._version for tensor in tensors]:
            raise StateError(
                f"{run.name} changed an input in place, so it cannot be computed again: "
                "copy the input in it, or use_reentrant=False"
            )
        return run.rebuild(output)

    @contextlib.contextmanager
    def _keeping(self) -> Iterator[None]:
        # A checkpoint inside of another leaves its inputs to that one, which forgets them.
        if not self._keeper.active or self._inside.depth:
            yield
            return
        with torch.autograd.graph.saved_tensors_hooks(self._keeper.pack, self._keeper.unpack):
            yield

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Marks this thread as running a checkpointed function."""
        self._inside.depth += 1
        try:
            yield
        finally:
            self._inside.depth -= 1

    def timed(
        self,
        what: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call `function`, with the waits and the log line that the options ask for."""
        profile = self.options.profile
        if not profile and not self.options.synchronize_checkpoint_boundary:
            return function(*args, **kwargs)
        _synchronize()
        start = time.perf_counter()
        output = function(*args, **kwargs)
        _synchronize()
        if profile:
            seconds = time.perf_counter() - start
            logger.info("checkpoint %s: %s %.3f ms", _name(function), what, 1e3 * seconds)
        return output


class _Inside(threading.local):
    """How many checkpointed functions this thread is in (backward passes have own threads)."""

    depth = 0


class _Run:
    """One checkpointed call. The first run is the forward pass, each later one repeats it."""

    def __init__(
        self,
        owner: ActivationCheckpointer,
        function: Callable[..., Any],
        arguments: Callable[..., tuple[tuple[Any, ...], dict[str, Any]]],
    ) -> None:
        self._owner, self._function, self._arguments = owner, function, arguments
        self._states: dict[str, Tensor] | None = None
        self.name = _name(function)

    def __call__(self, *tensors: Tensor) -> Any:
        args, kwargs = self._arguments(*tensors)
        rng = self._owner.rng
        with self._owner.entered():
            if self._states is None:
                self._states = rng.get_states()
                return self._owner.timed("forward", self._function, args, kwargs)
            with rng.replaying(self._states):
                return self._owner.timed("recompute", self._function, args, kwargs)

    def after_anchor(self, anchor: Tensor, *tensors: Tensor) -> Any:
        """The reentrant kind knows tuples of tensors only: hand it the leaves of the result."""
        leaves, self._structure = tree_flatten(self(*tensors))
        return tuple(leaves)

    def rebuild(self, leaves: tuple[Any, ...]) -> Any:
        return tree_unflatten(list(leaves), self._structure)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or type(function).__qualname__


def _synchronize() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
