"""One parameter of stage 3: a share on every rank, whole only while it is in use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from ds_core.contracts import Pending
from ds_core.errors import StateError
from ds_zero.exchange import Exchange
from ds_zero.plan import share

_numbers = itertools.count()  # gives each parameter of the process its `ds_id`

COALESCE = 1 << 16
"""Elements below which parameters travel together: latency costs more than a copy."""


P = ParamSpec("P")
R = TypeVar("R")


def _of_normal_tensors(call: Callable[P, R]) -> Callable[P, R]:
    """Lets `call` make tensors that training can use too, also under `torch.inference_mode`."""

    @wraps(call)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not torch.is_inference_mode_enabled():
            return call(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return call(*args, **kwargs)

    return run


class ZeroParamStatus(Enum):
    """Whether a parameter is whole on this rank."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


class Shard:
    """This rank's share of `param`, and the whole while it is gathered.

    While it is not gathered the parameter is empty (shape `(0,)`), and keeps its identity, hooks
    and Python attributes.

    Attributes:
        shape, numel: of the whole.
        width: elements of a share, padding included.
        local: this rank's share, flat; moved by its owner (`bind`).
        name: the parameter's name in messages.
        index: its place in the table of all parameters, once a strategy owns it.
        keeps: stays whole between uses.
        in_leaf: belongs to a module that is gathered as one.
        fetch_local: starts copying the share to a given tensor, where `local` is not in memory.
        on_edit: told this rank's new values, without padding, when an edit replaced them.
    """

    def __init__(self, param: nn.Parameter, exchange: Exchange, *, name: str = "") -> None:
        self.param, self.exchange = param, exchange
        self.shape, self.numel = param.shape, param.numel()
        self.width = share(self.numel, exchange.world_size)
        self.number = next(_numbers)
        self.name = name or f"parameter {self.number}"
        self.index = -1
        self.keeps = False
        self.in_leaf = False
        self.users: set[int] = set()
        self.device = param.device
        self.local = torch.empty(0, dtype=param.dtype)
        self.fetch_local: Callable[[Tensor], Pending] | None = None
        self.on_edit: Callable[[Tensor], None] | None = None
        self._status = ZeroParamStatus.AVAILABLE
        self.whole: Tensor | None = None
        self.pending: Pending | None = None
        self._version = 0
        _show(self)

    @property
    def status(self) -> ZeroParamStatus:
        return self._status

    @status.setter
    def status(self, status: ZeroParamStatus) -> None:
        self._status = status
        self.param.ds_status = status  # type: ignore[attr-defined]

    @property
    def dtype(self) -> torch.dtype:
        return self.param.dtype

    @property
    def rank(self) -> int:
        return self.exchange.rank

    @property
    def own_numel(self) -> int:
        """Elements of the share without padding."""
        return max(0, min(self.width, self.numel - self.rank * self.width))

    def take_share(self, *, device: torch.device | None = None) -> None:
        """Keep this rank's share of the present value in a memory of its own."""
        flat = self.param.detach().reshape(-1)
        start = min(self.rank * self.width, self.numel)
        own = torch.zeros(self.width, dtype=flat.dtype, device=device or flat.device)
        own[: self.own_numel] = flat[start : start + self.own_numel]
        self.bind(own)

    def scatter_from(self, source: int) -> None:
        """Let every rank take its share of rank `source`'s value."""
        if self.exchange.world_size > 1:
            whole = self.param.detach().contiguous()
            self.exchange.comm.broadcast(whole, source, label=f"value of {self.name}").wait()
            if whole.data_ptr() != self.param.data_ptr():
                self.param.data.copy_(whole)
        self.take_share()

    def store_own(self, own: Tensor) -> None:
        """Replace the share's values by `own`, given without padding."""
        if self.fetch_local is None:
            self.local[: self.own_numel].copy_(own)
        if self.on_edit is not None:
            self.on_edit(own)

    def bind(self, local: Tensor) -> None:
        """Let the share lie in `local` from now on."""
        self.local = local
        self.param.ds_tensor = local  # type: ignore[attr-defined]

    def recast(self, dtype: torch.dtype) -> None:
        """Change the format of an empty parameter."""
        self.bind(self.local.to(dtype))
        self._set(torch.empty(0, dtype=dtype, device=self.device))
        self._version = self.param._version

    @_of_normal_tensors
    def release(self) -> None:
        """Make the parameter empty; views of the whole that others hold stay valid."""
        if self.pending is not None:
            self.pending.wait()
            self.pending = None
        self.whole = None
        self._set(torch.empty(0, dtype=self.dtype, device=self.device))
        self.status = ZeroParamStatus.NOT_AVAILABLE
        self._version = self.param._version

    def show_whole(self, whole: Tensor) -> None:
        """Let the parameter be a view of flat `whole`."""
        self.whole = whole
        self._set(whole[: self.numel].view(self.shape))
        self.status = ZeroParamStatus.AVAILABLE

    def lies_at(self, address: int) -> bool:
        """Whether the whole, which does not stay between uses, begins at `address`."""
        whole = self.whole
        at_address = whole is not None and whole.untyped_storage().data_ptr() == address
        return at_address and not self.keeps

    def show_shape(self, _grad: Tensor | None = None) -> None:
        """Give an empty parameter its shape without memory, for autograd to accumulate into.

        A gradient hook: autograd needs the shape just then.
        """
        if self.status is not ZeroParamStatus.AVAILABLE:
            self._set(torch.empty((), dtype=self.dtype, device=self.device).expand(self.shape))

    def show_empty(self) -> None:
        """Undo `show_shape`."""
        if self.status is not ZeroParamStatus.AVAILABLE:
            self._set(torch.empty(0, dtype=self.dtype, device=self.device))

    def check_untouched(self) -> None:
        """Raise if the parameter was written while it was empty."""
        if self.status is ZeroParamStatus.NOT_AVAILABLE and self.param._version != self._version:
            self._version = self.param._version
            raise StateError(
                f"'{self.name}' was written in place while it was not gathered; the values are "
                "lost. Write inside GatheredParameters(param, modifier_rank=0)"
            )

    def _set(self, data: Tensor) -> None:
        self.param.data = data


@_of_normal_tensors
def start_gather(shards: Iterable[Shard], *, apart: bool = False) -> None:
    """Start gathering those of `shards` that are neither whole nor on their way.

    Args:
        apart: one message a parameter, small ones too.
    """
    wanted = [s for s in shards if s.status is ZeroParamStatus.NOT_AVAILABLE]
    for shard in wanted:
        shard.check_untouched()
        shard.status = ZeroParamStatus.INFLIGHT
    small: dict[torch.dtype, list[Shard]] = {}
    for shard in wanted:
        if shard.numel >= COALESCE or apart or shard.exchange.world_size == 1:
            shard.pending = _gather_one(shard)
        else:
            small.setdefault(shard.dtype, []).append(shard)
    for members in small.values():
        _gather_together(members)


@_of_normal_tensors
def finish_gather(shards: Iterable[Shard]) -> None:
    """Return once all of `shards` are whole."""
    for shard in shards:
        if shard.pending is not None:
            pending, shard.pending = shard.pending, None
            pending.wait()


def _gather_one(shard: Shard) -> Pending:
    world = shard.exchange.world_size
    if world == 1 and shard.fetch_local is None and shard.local.device == shard.device:
        return _Then(None, lambda: shard.show_whole(shard.local))
    whole = torch.empty(world * shard.width, dtype=shard.dtype, device=shard.device)
    own = whole.view(world, -1)[shard.rank] if shard.width else whole
    _copy_local(shard, own)
    work = _exchange(whole, [shard]) if shard.width else None
    return _Then(work, lambda: shard.show_whole(whole))


def _gather_together(shards: Sequence[Shard]) -> None:
    flat = _own_row(shards)
    work = _exchange(flat.view(-1), shards) if flat.numel() else None
    shared = _Then(work, partial(_split, shards, flat))
    for shard in shards:
        shard.pending = shared


def join_gather(shards: Sequence[Shard]) -> Pending:
    """Take part in a gather for others' sake."""
    flat = _own_row(shards)
    return shards[0].exchange.copies(flat, _label(shards))


def _own_row(shards: Sequence[Shard]) -> Tensor:
    """Memory for a gather of `shards`, a row a rank; the own row is filled."""
    first = shards[0]
    total = sum(shard.width for shard in shards)
    shape = (first.exchange.world_size, total)
    flat = torch.empty(shape, dtype=first.dtype, device=first.device)
    offset = 0
    for shard in shards:
        _copy_local(shard, flat[first.rank, offset : offset + shard.width])
        offset += shard.width
    return flat


def _exchange(flat: Tensor, shards: Sequence[Shard]) -> Pending:
    key = tuple(shard.index for shard in shards)
    key = key if key[0] >= 0 else ()
    return shards[0].exchange.all_gather(flat, label=_label(shards), key=key)


def _label(shards: Sequence[Shard]) -> str:
    names = [shard.name for shard in shards]
    return names[0] if len(names) == 1 else f"{names[0]} and {', '.join(names[1:])}"


def _split(shards: Sequence[Shard], flat: Tensor) -> None:
    offset = 0
    for shard in shards:
        columns = flat[:, offset : offset + shard.width]
        shard.show_whole(columns.contiguous().view(-1))  # memory of its own, of one layout always
        shard.pending = None
        offset += shard.width


def _copy_local(shard: Shard, target: Tensor) -> None:
    if shard.fetch_local is None:
        target.copy_(shard.local, non_blocking=True)
    else:
        shard.fetch_local(target).wait()


class _Then:
    """Work with something to do once it is done, exactly once."""

    def __init__(self, work: Pending | None, action: Callable[[], None]) -> None:
        self._work, self._action = work, action
        self._over = False

    def wait(self) -> None:
        if self._over:
            return
        if self._work is not None:
            self._work.wait()
        self._over = True
        self._action()

    def done(self) -> bool:
        return self._over or self._work is None or self._work.done()


def shard_of(param: nn.Parameter) -> Shard | None:
    """The shard behind a parameter of stage 3, None for any other."""
    return getattr(param, "ds_shard", None)


def gather_now(params: Iterable[nn.Parameter]) -> None:
    """Make parameters of stage 3 whole; others are left alone."""
    shards = [shard for shard in map(shard_of, params) if shard is not None]
    start_gather(shards)
    finish_gather(shards)


def release_now(params: Iterable[nn.Parameter]) -> None:
    """Make parameters of stage 3 empty, whatever was done to their values."""
    for shard in map(shard_of, params):
        if shard is not None and shard.status is not ZeroParamStatus.NOT_AVAILABLE:
            shard.release()


class _Users:
    """What `param.ds_active_sub_modules` answers."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def clear(self) -> None:
        self._shard.users.clear()

    def __len__(self) -> int:
        return len(self._shard.users)


def _show(shard: Shard) -> None:
    """Set the attributes that programs read on a parameter of stage 3: all of them, here."""
    param: Any = shard.param
    param.ds_shard = shard
    param.ds_id = shard.number
    param.ds_shape = shard.shape
    param.ds_numel = shard.numel
    param.ds_tensor = shard.local
    param.ds_persist = False
    param.ds_active_sub_modules = _Users(shard)
    param.partition_numel = lambda: shard.width
    param.all_gather = lambda param_list=None, **_: gather_now(param_list or [shard.param])
    param.partition = lambda param_list=None, **_: release_now(param_list or [shard.param])
    param.ds_status = shard.status


def hide(shard: Shard) -> None:
    """Take the attributes back: the parameter is an ordinary one again."""
    for name in (
        "ds_shard",
        "ds_id",
        "ds_status",
        "ds_shape",
        "ds_numel",
        "ds_tensor",
        "ds_persist",
        "ds_active_sub_modules",
        "partition_numel",
        "all_gather",
        "partition",
    ):
        shard.param.__dict__.pop(name, None)


__all__ = [
    "Shard",
    "ZeroParamStatus",
    "finish_gather",
    "gather_now",
    "hide",
    "join_gather",
    "release_now",
    "shard_of",
    "start_gather",
]
