"""Gathers parameters of stage 3 before they are used, and releases them after.

Modules are watched in forward (also when activation checkpointing runs it again). Backward needs
no module hooks: what autograd saves of a gathered parameter is remembered as a place in it, and
gathered again when autograd asks for it. So no stale or freed memory can ever be read, whatever
the model does with its weights.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from ds_core.errors import StateError
from ds_zero.params import Shard, ZeroParamStatus, finish_gather, shard_of, start_gather
from ds_zero.watched import OwnHook, Watched, external_parameters

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """How much may be gathered, all in elements.

    Attributes:
        prefetch: gathered ahead of the parameter in use.
        live: most that is kept whole for a later use.
        reuse: keep a parameter whose next use is at most so many elements of use away.
        apart: gather small parameters one by one too.
        remember_places: keep places instead of tensors in the autograd graph.
        log_changes: log when the order of use changes.
    """

    prefetch: int = 50_000_000
    live: int = 1_000_000_000
    reuse: int = 1_000_000_000
    apart: bool = False
    remember_places: bool = True
    log_changes: bool = False


@dataclass(frozen=True, slots=True)
class _Saved:
    """A view into a gathered parameter, as autograd keeps it."""

    shard: Shard
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class Coordinator:
    """Keeps the parameters of one module gathered exactly while they are in use.

    Args:
        module: whose parameters with a `Shard` are watched.
        limits: how much may be gathered.
        leaves: modules whose parameters, descendants' included, are gathered together at the
            first use of a pass and kept until the pass ends.
    """

    def __init__(
        self, module: nn.Module, limits: Limits, *, leaves: Iterable[nn.Module] = ()
    ) -> None:
        self._module, self._limits = module, limits
        self._leaves = {id(leaf): leaf for leaf in leaves}
        self._stack: list[nn.Module] = []
        self._live: dict[int, Shard] = {}  # by address of the whole
        self._lent: dict[Shard, None] = {}  # gathered and not always kept
        self._lent_numel = 0
        self._external: dict[int, list[Shard]] = {}
        self._frozen_in_use: list[Shard] = []
        self._clock = 0
        self._last_use: dict[Shard, tuple[str, int]] = {}
        self._distance: dict[tuple[str, Shard], int] = {}
        self._following: dict[tuple[str, Shard], Shard] = {}
        self._previous: tuple[str, Shard] | None = None
        self._saving: list[bool] = []
        self._said_empty = False
        self._kept = [shard for shard in self.shards() if shard.keeps]
        self.handles: list[RemovableHandle] = []
        self.watch()

    def watch(self) -> None:
        """Register the hooks; idempotent."""
        if self.handles:
            return
        inside: set[int] = set()
        for leaf in self._leaves.values():
            inside |= {id(child) for child in leaf.modules() if child is not leaf}
            for shard in self._own(leaf):
                shard.in_leaf = True
        for child in self._module.modules():
            if id(child) not in inside:
                self.watch_module(child)
        tell = self._module.register_state_dict_post_hook(OwnHook(self._tell_empty))  # type: ignore[no-untyped-call]
        self.handles.append(tell)

    def watch_module(self, module: nn.Module) -> None:
        """Gather `module`'s own parameters for its forward."""
        own = module.__dict__  # a wrapper may pass on what is set in any other way
        own["_parameters"] = Watched(own["_parameters"], self.touch)
        external = partial(external_parameters, module)
        own["ds_external_parameters"] = external  # programs call it on any module
        before, after = OwnHook(self._before), OwnHook(self._after)
        self.handles.append(module.register_forward_pre_hook(before))
        self.handles.append(module.register_forward_hook(after, always_call=True))

    def unwatch(self) -> None:
        """Remove the hooks."""
        for handle in self.handles:
            handle.remove()
        self.handles = []
        for child in self._module.modules():
            own = child.__dict__
            own.pop("ds_external_parameters", None)
            if isinstance(own["_parameters"], Watched):
                own["_parameters"] = dict(own["_parameters"])

    def fetch(self, shards: list[Shard], phase: str) -> None:
        """Make `shards` whole, and start on those that were used next the last time."""
        missing = [s for s in shards if s.status is not ZeroParamStatus.AVAILABLE]
        start_gather(missing, apart=self._limits.apart)
        for shard in shards:
            self._note_use(shard, phase)
        if missing and self._limits.prefetch:
            self._prefetch(phase, shards[-1])
        finish_gather(missing)
        for shard in missing:
            self._lend(shard)

    def release(self, shards: Iterable[Shard], phase: str) -> None:
        """Let go of `shards` unless they are in use, kept, or used again soon."""
        for shard in shards:
            if shard in self._lent and not (shard.users or self._is_used_soon(shard, phase)):
                self.drop(shard)

    def drop(self, shard: Shard) -> None:
        """Make `shard` empty."""
        if shard.whole is not None:
            self._live.pop(shard.whole.untyped_storage().data_ptr(), None)
        if shard in self._lent:
            del self._lent[shard]
            self._lent_numel -= shard.numel
        shard.release()

    def drop_all(self, *, kept_too: bool = False) -> None:
        """Make everything empty; with `kept_too` also what stays whole between uses."""
        self._frozen_in_use.clear()
        for shard in list(self._lent):
            shard.users.clear()
            self.drop(shard)
        for shard in self.shards():
            pending = shard.status is ZeroParamStatus.INFLIGHT
            if pending or (kept_too and shard.status is ZeroParamStatus.AVAILABLE):
                self.drop(shard)
        self._last_use.clear()
        self._previous = None

    def shards(self) -> Iterator[Shard]:
        """Every parameter's shard, each once."""
        seen: set[int] = set()
        for param in self._module.parameters():
            shard = shard_of(param)
            if shard is not None and id(shard) not in seen:
                seen.add(id(shard))
                yield shard

    def begin_backward(self) -> None:
        """A backward pass starts."""
        self._previous = None

    def end_backward(self) -> None:
        """A backward pass is over: nothing is in use."""
        self._end_pass("backward")

    def accumulated(self, shard: Shard) -> None:
        """Autograd is done with a trained parameter in this pass."""
        if shard not in self._lent or self._stack:
            return
        shard.users.clear()
        self.release([shard], "backward")

    def touch(self, param: nn.Parameter) -> None:
        """A module's parameter is read by name; gather it if a forward of another runs."""
        shard = shard_of(param)
        if shard is None or not self._stack or shard.status is ZeroParamStatus.AVAILABLE:
            return
        user = self._stack[-1]
        external = self._external.setdefault(id(user), [])
        if shard not in external:
            external.append(shard)
        shard.users.add(id(user))
        self.fetch([shard], _phase())

    def _before(self, module: nn.Module, _args: Any) -> None:
        phase = _phase()
        if module is self._module:
            self._begin_root()
        if not self._stack:
            if phase == "forward":
                self._begin_forward()
            self._push_saving()
        self._stack.append(module)
        shards = self._own(module)
        if shards:
            for shard in shards:
                shard.users.add(id(module))
            self.fetch(shards, phase)

    def _after(self, module: nn.Module, _args: Any, output: Any) -> None:
        phase = _phase()
        if self._stack and self._stack[-1] is module:
            self._stack.pop()
        self._keep_escaped(output)
        shards = self._own(module)
        for shard in shards:
            shard.users.discard(id(module))
        if id(module) not in self._leaves:
            self.release(shards, phase)
        if not self._stack:
            self._pop_saving()
            if phase == "forward":
                self._end_pass("forward")

    def _begin_forward(self) -> None:
        """Clear what a pass that raised left behind; bring in what is kept from now on."""
        for shard in self._lent:
            shard.users.clear()
        self._previous = None
        kept = [s for s in self._kept if s.status is not ZeroParamStatus.AVAILABLE]
        if kept:
            start_gather(kept, apart=self._limits.apart)
            finish_gather(kept)

    def _begin_root(self) -> None:
        if self._module._compiled_call_impl is not None:
            raise StateError(
                "the module was compiled after the start; stage 3 gathers parameters around every "
                "module, which torch.compile cannot trace. Leave it, or use stage 2"
            )
        self._forget_interrupted()

    def _forget_interrupted(self) -> None:
        """A forward ended in a way that not even hooks are told of (an interrupt)."""
        self._stack.clear()
        while self._saving:
            self._pop_saving()

    def _end_pass(self, phase: str) -> None:
        self._frozen_in_use.clear()
        for shard in list(self._lent):
            shard.users.clear()
            if not self._is_used_soon(shard, phase):
                self.drop(shard)
        for shard in self.shards():
            if shard.status is ZeroParamStatus.INFLIGHT:
                self.drop(shard)
        self._previous = None

    def _own(self, module: nn.Module) -> list[Shard]:
        """Shards of the parameters that `module`'s forward reads."""
        if id(module) in self._leaves:
            params: Iterable[nn.Parameter | None] = module.parameters()
        else:
            params = dict.values(module._parameters)
        found = [shard for p in params if p is not None and (shard := shard_of(p)) is not None]
        found += [s for s in self._external.get(id(module), ()) if s not in found]
        for param in module.__dict__.get("_external_params", {}).values():
            shard = shard_of(param)
            if shard is not None and shard not in found:
                found.append(shard)
        return found

    def _lend(self, shard: Shard) -> None:
        if shard.whole is not None and shard.exchange.world_size > 1:
            self._live[shard.whole.untyped_storage().data_ptr()] = shard
        if not shard.keeps and shard not in self._lent:
            self._lent[shard] = None
            self._lent_numel += shard.numel

    def _keep_escaped(self, output: Any) -> None:
        """A module may return a parameter itself, for its caller to use."""
        if output is None or (isinstance(output, Tensor) and not isinstance(output, nn.Parameter)):
            return
        for leaf in tree_leaves(output):
            if isinstance(leaf, nn.Parameter):
                shard = shard_of(leaf)
                if shard is not None and self._stack:
                    shard.users.add(id(self._stack[0]))

    def _tell_empty(self, _module: nn.Module, state: Mapping[str, Any], *_: Any) -> None:
        """Say once that a state dict was taken while parameters are spread over the ranks.

        Not with `keep_vars`: who asks for the parameters themselves gets them.
        """
        empty = [s for s in self.shards() if s.numel and s.status is not ZeroParamStatus.AVAILABLE]
        with_vars = any(isinstance(value, nn.Parameter) for value in state.values())
        if self._said_empty or with_vars or not empty:
            return
        self._said_empty = True
        logger.warning(
            "state_dict() of a model at ZeRO stage 3: %d parameters have no values in it, '%s' "
            "first: each rank keeps a part of them. To save them, call engine.save_checkpoint or "
            "deepspeed's engine.save_16bit_model; to have them here, call state_dict() on every "
            "rank inside of GatheredParameters(list(model.parameters())).",
            len(empty),
            empty[0].name,
        )

    def _note_use(self, shard: Shard, phase: str) -> None:
        """Learn what follows what, and after how many elements a parameter is used again."""
        before = self._last_use.get(shard)
        if before is not None:
            self._distance[before[0], shard] = self._clock - before[1]
        self._clock += shard.numel
        self._last_use[shard] = (phase, self._clock)
        previous, self._previous = self._previous, (phase, shard)
        if previous is None or previous[1] is shard:
            return
        known = self._following.get(previous)
        if known is not shard:
            if known is not None and self._limits.log_changes:
                logger.warning(
                    "order of use changed: after '%s' came '%s', not '%s'",
                    previous[1].name,
                    shard.name,
                    known.name,
                )
            self._following[previous] = shard

    def _prefetch(self, phase: str, shard: Shard) -> None:
        budget = self._limits.prefetch
        ahead: list[Shard] = []
        seen = {shard}
        following = self._following.get((phase, shard))
        while following is not None and following not in seen:
            seen.add(following)
            if following.status is ZeroParamStatus.NOT_AVAILABLE:
                budget -= following.numel
                if budget < 0:
                    break
                ahead.append(following)
            following = self._following.get((phase, following))
        start_gather(ahead, apart=self._limits.apart)

    def _is_used_soon(self, shard: Shard, phase: str) -> bool:
        distance = self._distance.get((phase, shard))
        if distance is None or distance > self._limits.reuse:
            return False
        return self._lent_numel <= self._limits.live

    def _push_saving(self) -> None:
        # Hooks that are there already keep working: those of a caller who offloads activations,
        # those of activation checkpointing that runs a forward again. They keep tensors too.
        theirs = torch._C._autograd._top_saved_tensors_default_hooks(False)
        wanted = torch.is_grad_enabled() and theirs is None
        self._saving.append(wanted)
        if wanted:
            torch._C._autograd._push_saved_tensors_default_hooks(self._pack, self._unpack)

    def _pop_saving(self) -> None:
        if self._saving and self._saving.pop():
            torch._C._autograd._pop_saved_tensors_default_hooks()

    def _pack(self, tensor: Tensor) -> Any:
        """A place, or a tensor that shares memory: a parameter itself may be empty by then."""
        if self._limits.remember_places and tensor.layout == torch.strided:
            address = tensor.untyped_storage().data_ptr()
            shard = self._live.get(address)
            if shard is not None and shard.lies_at(address) and tensor.dtype == shard.dtype:
                return _Saved(shard, tensor.size(), tensor.stride(), int(tensor.storage_offset()))
        return tensor.detach(), tensor._version

    def _unpack(self, saved: Any) -> Tensor:
        if isinstance(saved, _Saved):
            return self._view(saved)
        tensor, version = saved
        if tensor._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: {tuple(tensor.shape)}, version {tensor._version}, expected "
                f"{version}"
            )
        return tensor  # type: ignore[no-any-return]

    def _view(self, saved: _Saved) -> Tensor:
        shard = saved.shard
        if shard.status is not ZeroParamStatus.AVAILABLE or shard not in self._lent:
            self.fetch([shard], "backward")
        else:
            self._note_use(shard, "backward")
        whole = shard.whole
        assert whole is not None
        if not shard.param.requires_grad:
            self._turn_over_frozen(shard)
        return whole.as_strided(saved.size, saved.stride, saved.offset)

    def _turn_over_frozen(self, shard: Shard) -> None:
        """No gradient will tell when a frozen one is done: the next one's use does."""
        if shard in self._frozen_in_use:
            return
        old, self._frozen_in_use = self._frozen_in_use, [shard]
        self.release(old, "backward")


def _phase() -> str:
    """`backward` while autograd runs (activation checkpointing runs forward then)."""
    return "forward" if torch._C._current_graph_task_id() == -1 else "backward"
