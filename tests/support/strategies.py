"""One way to build an engine over any update strategy, for tests that hold for all of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ds_core.engine import Engine
from ds_core.groups import Groups, make_groups
from ds_core.optimizers import parameter_groups
from ds_core.precision import DynamicLossScaler, PrecisionSettings
from ds_core.precision.cast import cast_module
from ds_core.replicated import Replicated, ReplicatedSettings
from support.training import MakeOptimizer, adamw, make_model


@dataclass(frozen=True)
class Setup:
    """What a contract test varies."""

    accumulation: int = 1
    max_norm: float = 0.0
    dtype: torch.dtype = torch.float32
    bucket_elements: int = 10**9
    overlap: bool = True
    optimizer: MakeOptimizer = adamw

    def precision(self) -> PrecisionSettings:
        if self.dtype == torch.float16:
            return PrecisionSettings(self.dtype, make_scaler=lambda: DynamicLossScaler(initial=64))
        return PrecisionSettings(self.dtype)


def build_replicated(module: nn.Module, setup: Setup, groups: Groups) -> Any:
    """Stage 0."""
    params = parameter_groups(module.parameters())
    originals = cast_module(
        module, device=torch.device("cpu"), dtype=setup.dtype, keep=params[0]["params"]
    )
    return Replicated(
        module,
        params,
        setup.optimizer,
        groups=groups,
        precision=setup.precision(),
        settings=ReplicatedSettings(
            bucket_elements=setup.bucket_elements, overlap=setup.overlap, max_norm=setup.max_norm
        ),
        originals=originals,
    )


BUILDERS: dict[str, Callable[[nn.Module, Setup, Groups], Any]] = {"replicated": build_replicated}
"""Strategy name -> builder; packages add theirs in `support/strategies_*.py`."""


def build_engine(strategy: str, setup: Setup, module: nn.Module | None = None) -> Engine:
    """An engine over `module` (the awkward test model if None)."""
    module = make_model() if module is None else module
    groups = make_groups()
    return Engine(
        module,
        BUILDERS[strategy](module, setup, groups),
        groups=groups,
        accumulation_steps=setup.accumulation,
    )
