"""The hooks of ZeRO-3, under the names by which programs switch them off and on again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

if TYPE_CHECKING:
    from deepspeed.engine import DeepSpeedEngine


class ParameterOffload:
    """Stands for what gathers the parameters of an engine's module.

    Programs that generate text with whole parameters remove the hooks first and register them
    again afterwards: they remove each of `forward_hooks`, empty the list, and later call
    `_register_deepspeed_module`. There are no backward hooks and no trace of the order of use.
    """

    def __init__(self, engine: DeepSpeedEngine) -> None:
        self._engine = engine

    @property
    def module(self) -> nn.Module:
        return self._engine.module

    @property
    def forward_hooks(self) -> list[Any]:
        """Handles of the hooks; setting it to an empty list removes them all."""
        handles: list[Any] = self._coordinator.handles
        return handles

    @forward_hooks.setter
    def forward_hooks(self, hooks: Sequence[Any]) -> None:
        if not hooks:
            self._coordinator.unwatch()

    @property
    def backward_hooks(self) -> list[Any]:
        """None are needed."""
        return []

    @backward_hooks.setter
    def backward_hooks(self, hooks: Sequence[Any]) -> None:
        """Accepted for programs that empty the list."""

    @property
    def param_coordinator(self) -> ParameterOffload:
        return self

    def is_invalid_trace(self) -> bool:
        """True: no trace is kept that could mislead."""
        return True

    def _invalidate_trace(self) -> None:
        """Nothing to do."""

    def _register_deepspeed_module(self, module: nn.Module, *_: Any) -> None:
        """Put the hooks back."""
        self._coordinator.watch()

    setup_zero_stage3_hooks = _register_deepspeed_module

    def empty_partition_cache(self) -> None:
        """Let go of every gathered parameter."""
        self._engine.empty_partition_cache()

    @property
    def _coordinator(self) -> Any:
        return self._engine.strategy.coordinator


def show_external_parameters(module: nn.Module) -> None:
    """Let every module below answer `ds_external_parameters()`, as programs ask at stage 3."""
    for child in module.modules():
        child.__dict__["ds_external_parameters"] = partial(external_parameters, child)


def call_plain_tensors_whole() -> None:
    """Let every tensor answer `ds_status`, as parameters do.

    A program's own `autograd.Function` that saved a weight gets it back whole but as a plain tensor
    (autograd wraps what saved-tensor hooks return), and trl asks that for its status.
    """
    from ds_zero.params import ZeroParamStatus  # the package is optional

    Tensor.ds_status = ZeroParamStatus.AVAILABLE  # type: ignore[attr-defined]


def let_edits_reach_all(module: nn.Module, strategy: Any) -> None:
    """Below stage 3: let `GatheredParameters` find what hands edits on, if ds-zero is there."""
    with suppress(ModuleNotFoundError):
        from ds_zero.edits import show_edits

        show_edits(module.parameters(), strategy.gather)


def forget_edits(module: nn.Module) -> None:
    """Undo `let_edits_reach_all`."""
    with suppress(ModuleNotFoundError):
        from ds_zero.edits import hide_edits

        hide_edits(module.parameters())


def hide_external_parameters(module: nn.Module) -> None:
    """Undo `show_external_parameters`."""
    for child in module.modules():
        child.__dict__.pop("ds_external_parameters", None)


def external_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """(name, parameter) that `module` reads though another module owns it."""
    for number, param in enumerate(module.__dict__.get("_external_params", {}).values()):
        yield f"external{number}", param


def gathers_parameters(strategy: object) -> bool:
    """True for ZeRO-3."""
    return hasattr(strategy, "coordinator")
