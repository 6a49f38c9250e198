"""What programs look for behind `optimizer.parameter_offload` at stage 3."""

from __future__ import annotations

from typing import Any

from torch import nn

from ds_zero.coordinator import Coordinator


class ParameterOffload:
    """The hooks of stage 3 under the names with which programs take them off and put them back.

    Attributes:
        module: the watched module.
        backward_hooks: always empty; backward needs none.
    """

    def __init__(self, module: nn.Module, coordinator: Coordinator) -> None:
        self.module = module
        self.backward_hooks: list[Any] = []
        self._coordinator = coordinator

    @property
    def forward_hooks(self) -> list[Any]:
        """Handles with `remove()`; set to an empty list after all were removed."""
        return self._coordinator.handles

    @forward_hooks.setter
    def forward_hooks(self, handles: list[Any]) -> None:
        self._coordinator.handles = handles

    @property
    def param_coordinator(self) -> ParameterOffload:
        """The object itself: it answers for the order of use too."""
        return self

    def is_invalid_trace(self) -> bool:
        """Never: the order of use is learned as it changes."""
        return False

    def _invalidate_trace(self) -> None:
        return None

    def _register_deepspeed_module(self, module: nn.Module, *_: Any) -> None:
        self._coordinator.watch()
