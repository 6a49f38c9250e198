"""Calls hooks, each only for the methods it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor

from ds_core.contracts import Hook, StepEvent
from ds_core.errors import CheckpointError

_EVENTS = (
    "prepare_inputs",
    "before_forward",
    "after_forward",
    "before_backward",
    "after_backward",
    "before_step",
    "after_step",
    "close",
)


class HookList:
    """Hooks in the order they were given; a phase nobody watches costs an empty loop."""

    def __init__(self, hooks: Iterable[Hook]) -> None:
        self.hooks = tuple(hooks)
        self._calls: dict[str, tuple[Callable[..., Any], ...]] = {
            event: tuple(
                call for hook in self.hooks if (call := getattr(hook, event, None)) is not None
            )
            for event in _EVENTS
        }

    def prepare_inputs(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the module is called with; all that happens before a forward in evaluation."""
        for call in self._calls["prepare_inputs"]:
            args, kwargs = call(args, kwargs)
        return args, kwargs

    def before_forward(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """`prepare_inputs`, then what only training does."""
        args, kwargs = self.prepare_inputs(args, kwargs)
        for call in self._calls["before_forward"]:
            args, kwargs = call(args, kwargs)
        return args, kwargs

    def after_forward(self, output: Any) -> None:
        for call in self._calls["after_forward"]:
            call(output)

    def before_backward(self, loss: Tensor) -> None:
        for call in self._calls["before_backward"]:
            call(loss)

    def after_backward(self) -> None:
        for call in self._calls["after_backward"]:
            call()

    def before_step(self) -> None:
        for call in self._calls["before_step"]:
            call()

    def after_step(self, event: StepEvent) -> None:
        for call in self._calls["after_step"]:
            call(event)

    def close(self) -> None:
        """Close the hooks, last first: a later one may still write to an earlier one."""
        for call in reversed(self._calls["close"]):
            call()

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """The state of every hook that has any, by key."""
        found = [(hook, getattr(hook, "state_dict", None)) for hook in self.hooks]
        return {hook.key: state() for hook, state in found if state is not None}

    def load_state_dict(self, states: dict[str, dict[str, Any]]) -> None:
        """Give each hook its saved state; hooks without one in `states` keep theirs."""
        for hook in self.hooks:
            load = getattr(hook, "load_state_dict", None)
            if load is not None and hook.key in states:
                try:
                    load(states[hook.key])
                except (KeyError, TypeError, ValueError) as error:
                    raise CheckpointError(
                        f"the saved state of '{hook.key}' does not fit: {error}"
                    ) from error
