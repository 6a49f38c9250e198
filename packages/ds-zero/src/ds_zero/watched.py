"""A module's table of parameters that tells when one is read by name."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn


class Watched(dict[str, Any]):
    """`module._parameters` of a watched module.

    A module may read a parameter of another one (a tied head); what it reads is gathered then.

    Args:
        params: the table so far.
        touch: called with each parameter that is read by name.
    """

    def __init__(self, params: dict[str, Any], touch: Callable[[nn.Parameter], None]) -> None:
        super().__init__(params)
        self._touch = touch

    def __getitem__(self, name: str) -> Any:
        param = super().__getitem__(name)
        if param is not None:
            self._touch(param)
        return param

    def __reduce__(self) -> Any:
        return (dict, (dict(self),))  # copies and pickles of a module are not watched

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[str, Any]:
        return {name: copy.deepcopy(param, memo) for name, param in self.items()}


class OwnHook:
    """A hook of one module: a copy of the module gets one that does nothing."""

    __slots__ = ("_call", "_from_public_api")  # torch marks hooks of state dicts by the latter

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __reduce__(self) -> Any:
        return (OwnHook, (_nothing,))


def _nothing(*_: Any) -> None:
    """The hook of a copy."""


def external_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Parameters of other modules that were registered with `module`."""
    for key, param in module.__dict__.get("_external_params", {}).items():
        yield str(key), param
