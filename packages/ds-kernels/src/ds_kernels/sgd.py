"""SGD with its momentum in CPU memory."""

from __future__ import annotations

from typing import Any

import torch

from ds_kernels import formulas
from ds_kernels.errors import OptionError
from ds_kernels.optimizer import KernelOptimizer, Params, check_hyper


class CPUSGD(KernelOptimizer):
    """SGD over CPU tensors in one pass; arguments and defaults of `torch.optim.SGD`.

    Args:
        params: tensors, named tensors or groups.
        lr, momentum, dampening, weight_decay, nesterov, maximize: as in torch.
        state_dtype: dtype of the momentum.
    """

    rule = formulas.SGD

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        state_dtype: torch.dtype = torch.float32,
    ) -> None:
        check_hyper(lr=lr, momentum=momentum, weight_decay=weight_decay)
        if nesterov and (momentum == 0 or dampening != 0):
            raise OptionError("nesterov needs a momentum above 0 and a dampening of 0")
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "maximize": maximize,
        }
        super().__init__(params, defaults, state_dtype=state_dtype)

    def _state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return self.rule.state_names if group["momentum"] else ()
