"""Flat steps: one object an algorithm, for engines that own flat buffers of many parameters.

They have the shape of the `FlatStep` protocol of ds-core without importing it. LAMB has none: its
trust ratio needs the norm of each whole parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ds_kernels import formulas
from ds_kernels.errors import OptionError, TensorError
from ds_kernels.formulas import Rule
from ds_kernels.memory import HugePages
from ds_kernels.pending import PendingStep, StepQueue
from ds_kernels.steps import lanes_of, start


class FlatStep:
    """One pass over flat buffers of one parameter group, in the background.

    Args:
        rule: the algorithm.
        defaults: settings that a parameter group may leave out.

    Attributes:
        state_names: keys of the moments in `states`, as in the optimizer's own state dict.
    """

    def __init__(self, rule: Rule, defaults: Mapping[str, Any]) -> None:
        self.state_names = rule.state_names
        self._rule = rule
        self._defaults = dict(defaults)
        self._queue = StepQueue()
        self._pages = HugePages()

    def __call__(
        self,
        master: Tensor,
        grad: Tensor,
        states: Mapping[str, Tensor],
        *,
        out: Tensor | None,
        hyper: Mapping[str, Any],
        step: int,
        grad_scale: float,
    ) -> PendingStep:
        """Update `master` and `states` in place; write the new value to `out` in its dtype.

        All tensors are 1-d, contiguous, on the CPU, of equal length (slices are welcome); leave
        them alone until `wait()`. `hyper` is the parameter group, which may use ds-kernels' or
        torch's names; `step` counts from 1; gradients are multiplied by `grad_scale` first.
        """
        if hyper.get("amsgrad", False):
            raise OptionError("amsgrad is not offered; use torch.optim's own optimizer for it")
        group = {**self._defaults, **hyper}
        needed = self.state_names if self._uses_states(group) else ()
        missing = [name for name in needed if name not in states]
        if missing:
            raise TensorError(f"states lacks {', '.join(missing)}; it has {', '.join(states)}")
        lanes = lanes_of(master, grad, {name: states[name] for name in needed}, out)
        pending = start(self._rule, lanes, group, step, grad_scale, self._queue)
        self._pages.settle(lanes)
        return pending

    def _uses_states(self, group: Mapping[str, Any]) -> bool:
        return self._rule is not formulas.SGD or bool(group["momentum"])


def adam() -> FlatStep:
    """Adam with L2 in the gradient, unless the group says otherwise."""
    return FlatStep(formulas.ADAM, {"weight_decay": 0.0, "eps": 1e-8})


def adamw() -> FlatStep:
    """Adam with decoupled weight decay, unless the group says otherwise."""
    return FlatStep(
        formulas.ADAM, {"weight_decay": 0.0, "eps": 1e-8, "decoupled_weight_decay": True}
    )


def adagrad() -> FlatStep:
    return FlatStep(formulas.ADAGRAD, {"weight_decay": 0.0, "eps": 1e-10})


def lion() -> FlatStep:
    return FlatStep(formulas.LION, {"weight_decay": 0.0})


def sgd() -> FlatStep:
    plain = {"weight_decay": 0.0, "momentum": 0.0, "dampening": 0.0, "nesterov": False}
    return FlatStep(formulas.SGD, plain)
