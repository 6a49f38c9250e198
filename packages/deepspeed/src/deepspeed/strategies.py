"""Chooses and builds the update strategy: how state lies across ranks, and who updates it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deepspeed import registry
from deepspeed.compiled import run_eagerly
from deepspeed.config import Config
from deepspeed.precision import compute_dtype
from ds_core.contracts import FlatStep, TensorStore
from ds_core.errors import ConfigError
from ds_core.forward_only import ForwardOnly
from ds_core.groups import Groups
from ds_core.optimizers import MakeOptimizer
from ds_core.precision import PrecisionSettings
from ds_core.precision.cast import cast_module
from ds_core.replicated import Replicated, ReplicatedSettings

_BY_SHAPE = ("adafactor", "muon", "lamb", "lars", "shampoo", "soap", "sparseadam")
_NOT_IN_ONE_PASS = ("amsgrad", "maximize", "torch_adam", "differentiable", "capturable")


@dataclass(frozen=True)
class Parts:
    """What a strategy is made of.

    Attributes:
        module: where and as the user made it.
        param_groups: groups of the module's parameters.
        optimizer: an optimizer object over these, or a factory called with groups of what is
            updated; None for an engine that only evaluates.
        config: the resolved configuration; read here and nowhere below.
    """

    module: nn.Module
    param_groups: list[dict[str, Any]]
    optimizer: torch.optim.Optimizer | MakeOptimizer | None
    groups: Groups
    precision: PrecisionSettings
    config: Config
    device: torch.device

    @property
    def max_norm(self) -> float:
        return self.config.general.gradient_clipping or 0.0

    @property
    def predivide(self) -> float | None:
        general = self.config.general
        return general.gradient_predivide_factor if general.prescale_gradients else None


def make_strategy(parts: Parts) -> Any:
    """An `UpdateStrategy` for the configuration; the one place that reads the stage."""
    zero: Any = None
    if "zero_optimization" in parts.config.installed:
        zero = parts.config.section("zero_optimization")
    if (zero is not None and zero.stage > 0) or is_partitioned(parts.module):
        return _sharded(parts, zero)
    return _replicated(parts)


def is_partitioned(module: nn.Module) -> bool:
    """True if the module was built inside `zero.Init`."""
    return any(hasattr(param, "ds_id") for param in module.parameters())


def _replicated(parts: Parts) -> Replicated | ForwardOnly:
    originals = cast_module(
        parts.module,
        device=parts.device,
        dtype=compute_dtype(parts.config) if parts.precision.compute_dtype else None,
        keep=[param for group in parts.param_groups for param in group["params"]],
    )
    if parts.optimizer is None:
        return ForwardOnly(parts.module, parts.groups)
    return Replicated(
        parts.module,
        parts.param_groups,
        parts.optimizer,
        groups=parts.groups,
        precision=parts.precision,
        settings=ReplicatedSettings(
            predivide=parts.predivide,
            sparse_gradients=parts.config.general.sparse_gradients,
            max_norm=parts.max_norm,
        ),
        originals=originals,
    )


def _sharded(parts: Parts, section: Any) -> Any:
    make = registry.load("strategies", "zero")
    from ds_zero.strategy import Setup  # the package is optional

    if parts.optimizer is None and section.stage < 3:
        return _replicated(parts)
    setup = Setup(
        module=parts.module,
        param_groups=parts.param_groups,
        optimizer=parts.optimizer or (lambda groups: torch.optim.SGD(groups, lr=0.0)),
        groups=parts.groups,
        precision=parts.precision,
        max_norm=parts.max_norm,
        predivide=parts.predivide,
        flat_step=flat_step_for(parts.config, parts.optimizer),
    )
    if section.stage == 3 or is_partitioned(parts.module):
        run_eagerly(parts.module)
    strategy = make(section, setup, device=parts.device, make_store=_store_maker(parts.config))
    _refuse_shape_dependent(strategy.optimizer, section.stage)
    return strategy


def _refuse_shape_dependent(optimizer: torch.optim.Optimizer, stage: int) -> None:
    """A sharded strategy hands flat pieces of parameters to the optimizer."""
    name = type(optimizer).__name__
    if any(known in name.lower() for known in _BY_SHAPE):
        raise ConfigError(
            f"{name} looks at whole parameters, which zero_optimization.stage {stage} cuts into "
            "flat pieces; use stage 0, or an elementwise optimizer such as AdamW"
        )


def _store_maker(config: Config) -> Callable[[Path], TensorStore] | None:
    """Makes stores for what is offloaded to NVMe, with the settings of the `aio` section."""
    make = registry.find("tensor_stores", "nvme")
    if make is None:
        return None
    section = config.section("aio") if "aio" in config.installed else None
    return lambda directory: make(directory, section)


def flat_step_for(config: Config, optimizer: object) -> FlatStep | None:
    """The one-pass update that does what the optimizer does, if an installed package has one."""
    section: Any = config.sections.get("optimizer")
    if isinstance(optimizer, torch.optim.Optimizer):
        if any(_asks_for_more(group) for group in optimizer.param_groups):
            return None
        known = {torch.optim.Adam: "adam", torch.optim.AdamW: "adamw"}
        name, options = known.get(type(optimizer), ""), optimizer.defaults
    elif section is not None:
        name, options = section.type.lower(), section.params
    else:
        return None
    if not name or _asks_for_more(options):
        return None
    make = registry.find("flat_steps", name)
    return None if make is None else make()


def _asks_for_more(options: Mapping[str, Any]) -> bool:
    return any(options.get(name) for name in _NOT_IN_ONE_PASS)
