"""How optimizers are made, and how one steps over flat memory in a single pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from ds_core.contracts.store import Pending

OptimizerFactory = Callable[[Iterable[Any], Mapping[str, Any]], torch.optim.Optimizer]
"""`factory(params_or_groups, options)`; `options` are the JSON `optimizer.params`."""


class FlatStep(Protocol):
    """One pass over flat buffers of one parameter group.

    Attributes:
        state_names: keys of the moments in `states`, as in the optimizer's own state dict.
    """

    state_names: tuple[str, ...]

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
    ) -> Pending:
        """Update `master` and `states` in place; write the new value to `out` in its dtype.

        All tensors are 1-d, contiguous, on the CPU, of equal length (slices are welcome); the
        caller owns them and leaves them alone until `wait()`. `hyper` is the parameter group
        (lr, betas, ...); `step` counts from 1; every gradient is multiplied by `grad_scale`
        before it is used.
        """
