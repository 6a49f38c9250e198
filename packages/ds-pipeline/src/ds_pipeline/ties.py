"""Parameters that several stages hold copies of, kept equal to the bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ds_core.comm import Communicator
from ds_core.errors import ConfigError, RankMismatchError
from ds_pipeline.grid import PipelineParallelGrid
from ds_pipeline.specs import TiedLayerSpec


@dataclass
class Tie:
    """One key as this rank holds it.

    Attributes:
        params: tied parameters by name in the module, sorted, alike on all stages of the key.
        owner: true on the first of its stages, which counts and saves the parameters.
    """

    key: str
    comm: Communicator
    owner: bool
    params: dict[str, nn.Parameter] = field(default_factory=dict)
    buffer: Tensor | None = None
    views: dict[nn.Parameter, Tensor] = field(default_factory=dict)
    used: set[nn.Parameter] = field(default_factory=set)


class TiedWeights:
    """The ties across stages that this rank takes part in.

    Gradients of tied parameters are caught before the update strategy sees them, summed in fp32
    over the stages once a step, by key, and then handed to the strategy whole. So ties work under
    any strategy, and every copy gets the same bits.

    Args:
        specs: all layers, on every rank alike.
        modules: the tied modules built here, by key.
        stages_of: the stages that hold a key.
        grid: makes the groups; all ranks call this together.
    """

    def __init__(
        self,
        specs: Sequence[Any],
        modules: nn.ModuleDict,
        stages_of: Callable[[str], list[int]],
        grid: PipelineParallelGrid,
    ) -> None:
        tied = [spec for spec in specs if isinstance(spec, TiedLayerSpec)]
        for spec in tied:
            if spec.key in modules:
                _require_attributes(spec, modules[spec.key])
        self.ties: list[Tie] = []
        for key in sorted({spec.key for spec in tied}):  # one order on all ranks
            stages = stages_of(key)
            if len(stages) < 2:
                continue
            group, ranks = grid.make_group(_rank_lists(grid, stages))
            if grid.global_rank in ranks:
                comm = Communicator(group, name=f"tie {key}")
                owner = grid.stage_id == stages[0]
                self.ties.append(Tie(key, comm, owner, _common(comm, key, modules[key])))
        self._handles: list[RemovableHandle] = []
        self.broadcast()

    def __bool__(self) -> bool:
        return bool(self.ties)

    def copies(self) -> set[nn.Parameter]:
        """Parameters here that another stage owns."""
        return {p for tie in self.ties if not tie.owner for p in tie.params.values()}

    def broadcast(self) -> None:
        """Give every copy the owner's values."""
        for tie in self.ties:
            for param in tie.params.values():
                value = param.detach().to(tie.comm.device)
                value = value.contiguous()
                tie.comm.broadcast(value, 0, label=f"tie {tie.key}").wait()
                with torch.no_grad():
                    param.copy_(value)

    def watch(self) -> None:
        """Catch the gradients of tied parameters from now on."""
        for tie in self.ties:
            for param in tie.params.values():
                if param.requires_grad:
                    handle: RemovableHandle = param.register_hook(self._catcher(tie, param))  # type: ignore[no-untyped-call]
                    self._handles.append(handle)

    def close(self) -> None:
        """Let gradients go their usual way again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def forget(self) -> None:
        """Drop the gradients of the open window."""
        for tie in self.ties:
            tie.used.clear()

    def reduce(self) -> None:
        """Sum what was caught over the stages, and accumulate the sums in the parameters."""
        for tie in self.ties:
            params = [param for param in tie.params.values() if param.requires_grad]
            if not params:
                continue
            buffer = self._buffer(tie)
            flags = buffer[-len(params) :]
            for slot, param in enumerate(params):
                flags[slot] = float(param in tie.used)
                if param not in tie.used:
                    tie.views[param].zero_()
            sent = buffer.to(tie.comm.device)
            tie.comm.all_reduce(sent, label=f"tie {tie.key}").wait()
            if sent is not buffer:
                buffer.copy_(sent)
            used = flags.tolist()
            tie.used.clear()
            self.close()  # what is handed over now must not be caught again
            for slot, param in enumerate(params):
                if used[slot]:
                    _hand_over(param, tie.views[param])
            self.watch()

    def _catcher(self, tie: Tie, param: nn.Parameter) -> Callable[[Tensor], Tensor]:
        def catch(grad: Tensor) -> Tensor:
            self._buffer(tie)
            view = tie.views[param]
            if param in tie.used:
                view.add_(grad)
            else:
                view.copy_(grad)
                tie.used.add(param)
            return torch.zeros((), dtype=grad.dtype, device=grad.device).expand_as(grad)

        return catch

    def _buffer(self, tie: Tie) -> Tensor:
        """Flat sums of all parameters, then a flag each that says "used"."""
        if tie.buffer is None:
            params = [param for param in tie.params.values() if param.requires_grad]
            dtype = torch.promote_types(params[0].dtype, torch.float32)
            total = sum(param.numel() for param in params)
            size, device = total + len(params), params[0].device
            tie.buffer = torch.zeros(size, dtype=dtype, device=device)
            pieces = torch.split(tie.buffer[:total], [param.numel() for param in params])
            tie.views = {p: v.view(p.shape) for p, v in zip(params, pieces, strict=True)}
        return tie.buffer


def _hand_over(param: nn.Parameter, total: Tensor) -> None:
    """Accumulate an fp32 sum in a parameter of any format, in as many parts as it takes."""
    rest = total
    parts = 1 if param.dtype == total.dtype else 3
    for _ in range(parts):
        part = rest.to(param.dtype)
        torch.autograd.backward([param], [part])
        if parts > 1:
            rest = rest - part.to(rest.dtype)


def _rank_lists(grid: PipelineParallelGrid, stages: list[int]) -> list[list[int]]:
    columns = grid.topology().get_axis_comm_lists("pipe")
    return [[column[stage] for stage in stages] for column in columns]


def _require_attributes(spec: TiedLayerSpec, module: nn.Module) -> None:
    known = dict(module.named_parameters(remove_duplicate=False))
    for name in spec.tied_weight_attr:
        target: Any = module
        for part in name.split("."):
            target = getattr(target, part, None)
        if not isinstance(target, nn.Parameter):
            raise ConfigError(
                f"tied layer '{spec.key}': {type(module).__name__} has no parameter '{name}'; "
                f"it has {', '.join(known) or 'none'}"
            )


def _common(comm: Communicator, key: str, module: nn.Module) -> dict[str, nn.Parameter]:
    """What all copies have in common, by name."""
    mine = dict(module.named_parameters())
    facts = {name: (tuple(p.shape), str(p.dtype), p.requires_grad) for name, p in mine.items()}
    everyone: list[dict[str, Any]] = comm.all_gather_object(facts)
    shared = sorted(name for name in facts if all(name in other for other in everyone))
    for name in shared:
        held = [other[name] for other in everyone]
        if any(fact != held[0] for fact in held):
            raise RankMismatchError(
                f"tied layer '{key}': '{name}' is " + ", ".join(map(str, held)) + " by stage"
            )
    return {name: mine[name] for name in shared}
