"""The optimizer object that `initialize` returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from deepspeed.parameter_offload import ParameterOffload, gathers_parameters
from ds_core.contracts import StepReport


class SteppingEngine(Protocol):
    """What this face needs of the engine behind it."""

    strategy: Any
    last_report: StepReport | None

    def step(self) -> Any: ...

    def backward(self, loss: Tensor, retain_graph: bool = False) -> Any: ...

    def zero_grad(self, set_to_none: bool = True) -> None: ...

    def loss_scale(self) -> float: ...

    def dynamic_loss_scale(self) -> bool: ...


class DeepSpeedOptimizer(torch.optim.Optimizer):
    """Looks like the inner optimizer, steps like the engine.

    `param_groups`, `state` and `defaults` are those of the inner optimizer, so that schedulers and
    programs that write learning rates reach what is really used. `step` and `zero_grad` go to the
    engine, so that a program which only ever calls these trains the same.
    """

    def __init__(self, engine: SteppingEngine) -> None:
        # No super().__init__: groups and state belong to the inner optimizer.
        self.__dict__["_engine"] = engine

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The inner optimizer."""
        engine: SteppingEngine = self.__dict__["_engine"]
        inner: torch.optim.Optimizer = engine.strategy.optimizer
        return inner

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.optimizer.defaults

    @property
    def parameter_offload(self) -> ParameterOffload:
        """What gathers parameters at stage 3; absent at others."""
        if not gathers_parameters(self._engine.strategy):
            raise AttributeError("parameters are whole below ZeRO stage 3")
        return ParameterOffload(self._engine)

    @property
    def overflow(self) -> bool:
        """True if the last step was skipped because of non-finite gradients."""
        report = self._engine.last_report
        return report is not None and report.skipped

    @property
    def loss_scale(self) -> float:
        """The scale of the next backward pass."""
        return float(self._engine.loss_scale())

    cur_scale = loss_scale

    @property
    def dynamic_loss_scale(self) -> bool:
        return bool(self._engine.dynamic_loss_scale())

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """`engine.step()`.

        Raises:
            TypeError: for a closure; gradients are made by `engine.backward`.
        """
        if closure is not None:
            raise TypeError("step(closure) is not possible: call engine.backward(loss), then step")
        self._engine.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """`engine.zero_grad()`."""
        self._engine.zero_grad(set_to_none)

    def backward(self, loss: Tensor, retain_graph: bool = False) -> None:
        """`engine.backward(loss)`."""
        self._engine.backward(loss, retain_graph=retain_graph)

    def state_dict(self) -> dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: what is trained is laid out once.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError(
            "parameters cannot be added to a running engine; give all groups to initialize(), or "
            "destroy the engine and initialize again"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        engine = self.__dict__["_engine"]
        strategy = engine.strategy
        if name == "_engine":
            return engine
        return getattr(strategy if hasattr(strategy, name) else strategy.optimizer, name)

    def __repr__(self) -> str:
        return f"DeepSpeedOptimizer({self.optimizer!r})"
