"""Cutting the parameters of a whole module into shares."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ds_core.naming import named_buffers
from ds_zero.exchange import Exchange
from ds_zero.params import Shard, shard_of
from ds_zero.plan import Slice
from ds_zero.strategy import Setup
from ds_zero.units import Unit, trained


class Partition:
    """Cuts a module's parameters, one at a time, keeping fp32 values for the masters."""

    def __init__(
        self,
        setup: Setup,
        exchange: Exchange,
        *,
        device: torch.device | None,
        dtype: torch.dtype | None,
    ) -> None:
        self._rank = exchange.rank
        self._originals: dict[nn.Parameter, Tensor] = {}
        module = setup.module
        train = trained(setup.param_groups)
        for param in list(dict.fromkeys(module.parameters())):
            shard = shard_of(param)
            if shard is None:
                if device is not None:
                    param.data = param.data.to(device)
                shard = Shard(param, exchange)
                shard.scatter_from(0)
                shard.release()
            target = dtype if param.is_floating_point() else None
            if target is not None and target != shard.local.dtype:
                if shard.local.dtype == torch.float32 and param in train:
                    self._originals[param] = shard.local
                shard.recast(target)
        if device is not None:
            module.to(device)
        if dtype is not None:
            module.to(dtype)
        for buffer in named_buffers(module).values():
            exchange.comm.broadcast(buffer, 0, label="buffers").wait()

    def original(self, unit: Unit, piece: Slice) -> Tensor | None:
        """The fp32 values of a slice of a share."""
        param = unit.params[piece.index]
        shard = shard_of(param)
        if param not in self._originals or shard is None:
            return None
        start = piece.start - self._rank * shard.width
        return self._originals[param][start : start + piece.length]

    def forget(self) -> None:
        """Let go of the fp32 values."""
        self._originals.clear()
