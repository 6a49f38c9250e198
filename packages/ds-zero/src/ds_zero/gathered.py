"""Whole parameters of stage 3 inside a `with` block, edits included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ds_core.edits import require_kept, require_rank
from ds_core.errors import StateError
from ds_zero.edits import taking_over
from ds_zero.params import Shard, ZeroParamStatus, finish_gather, shard_of, start_gather


class GatheredParameters:
    """Inside, parameters of stage 3 are whole on every rank.

    All ranks enter and leave together. Below stage 3 they are whole anyway; edits still reach all
    ranks and the optimizer's fp32 copies, if an engine owns the parameter.

    Args:
        params: a parameter, or any iterable of tensors; those that no engine knows are ignored.
        modifier_rank: the rank whose edits reach all ranks; None promises not to edit.
        fwd_module: a module whose forward also reads these parameters; it is remembered.
        enabled: False makes this do nothing.

    Raises:
        StateError: on leaving, if a parameter was edited without `modifier_rank`.
    """

    def __init__(
        self,
        params: Iterable[Any] | Tensor,
        modifier_rank: int | None = None,
        fwd_module: nn.Module | None = None,
        enabled: bool = True,
    ) -> None:
        given: list[Any] = [params] if isinstance(params, Tensor) else list(params)
        self._shards = _shards_of(given) if enabled else []
        self._whole = [each for each in given if shard_of(each) is None] if enabled else []
        self._modifier_rank = modifier_rank
        self._context: Any = None
        if fwd_module is not None:
            for shard in self._shards:
                register_external_parameter(fwd_module, shard.param)

    def __enter__(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(taking_over(self._whole, self._modifier_rank))
            stack.enter_context(gathered(self._shards, modifier_rank=self._modifier_rank))
            self._context = stack.pop_all()

    def __exit__(self, *exc: Any) -> None:
        context, self._context = self._context, None
        context.__exit__(*exc)


@contextmanager
def gathered(shards: list[Shard], *, modifier_rank: int | None = None) -> Iterator[None]:
    """Inside, `shards` are whole; with `modifier_rank` that rank's values are taken over."""
    shards = sorted(shards, key=lambda shard: (shard.index, shard.number))  # sets have no order
    if modifier_rank is not None and shards:
        require_rank(shards[0].exchange.comm, modifier_rank)
    token = id(object())
    was_whole = {s for s in shards if s.status is ZeroParamStatus.AVAILABLE}
    for shard in shards:
        shard.users.add(token)
    start_gather(shards)
    finish_gather(shards)
    versions = {shard: shard.param._version for shard in shards}
    failed = True
    try:
        yield
        failed = False
    finally:
        kept = failed or modifier_rank is None or not shards
        fault = None if kept else _other_form(shards)
        failed = failed or fault is not None
        edited: list[str] = []
        for shard in shards:
            shard.users.discard(token)
            if not failed and modifier_rank is not None:
                _take_over(shard, modifier_rank)
            elif not failed and _is_edited(shard, versions[shard]):
                edited.append(shard.name)
            if shard not in was_whole and not shard.users:
                shard.release()
    if fault is not None:
        raise fault
    if edited:
        raise StateError(
            f"edited inside GatheredParameters without modifier_rank, so that no rank's values "
            f"count: {', '.join(edited)}. Pass modifier_rank=0 and edit on that rank"
        )


def register_external_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """Let `module`'s forward use `parameter`, which another module owns."""
    if not isinstance(parameter, nn.Parameter):
        raise TypeError(f"expected a parameter, got {type(parameter).__name__}")
    external = module.__dict__.setdefault("_external_params", {})
    external[id(parameter)] = parameter


def unregister_external_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """Undo `register_external_parameter`."""
    if module.__dict__.get("_external_params", {}).pop(id(parameter), None) is None:
        raise KeyError("the parameter was not registered with this module")


def _shards_of(tensors: Iterable[Any]) -> list[Shard]:
    found: dict[Shard, None] = {}
    for tensor in tensors:
        shard = shard_of(tensor)
        if shard is not None:
            found.setdefault(shard)
    return list(found)


def _own_part(shard: Shard, whole: Tensor) -> Tensor:
    start = min(shard.rank * shard.width, shard.numel)
    return whole.reshape(-1)[start : start + shard.own_numel]


def _is_edited(shard: Shard, version: int) -> bool:
    param = shard.param
    if param._version != version or param.shape != shard.shape:
        return True
    if shard.fetch_local is not None or shard.own_numel == 0:
        return False
    own = _own_part(shard, param.detach()).to(shard.local.device)
    return not torch.equal(own, shard.local[: shard.own_numel])


def _other_form(shards: list[Shard]) -> StateError | None:
    """The error of edits that changed a shape or format on any rank."""
    try:
        wanted = [(s.name, s.param, s.shape, s.local.dtype) for s in shards]
        require_kept(shards[0].exchange.comm, wanted)
    except StateError as error:
        return error
    return None


def _take_over(shard: Shard, source: int) -> None:
    """Let every rank hold rank `source`'s value."""
    param = shard.param
    value = param.detach().contiguous()
    shard.exchange.comm.broadcast(value, source, label=f"edit of {shard.name}").wait()
    if value.data_ptr() != param.data_ptr():
        param.data.copy_(value)
    shard.store_own(_own_part(shard, value))
