"""Adagrad with its sums in CPU memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ds_kernels import formulas
from ds_kernels.optimizer import KernelOptimizer, Params, check_hyper


class CPUAdagrad(KernelOptimizer):
    """Adagrad over CPU tensors in one pass; arguments and defaults of `torch.optim.Adagrad`.

    Args:
        params: tensors, named tensors or groups.
        lr, lr_decay, weight_decay, initial_accumulator_value, eps, maximize: as in torch.
        state_dtype: dtype of the sums.
    """

    rule = formulas.ADAGRAD

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        maximize: bool = False,
        state_dtype: torch.dtype = torch.float32,
    ) -> None:
        check_hyper(
            lr=lr,
            lr_decay=lr_decay,
            weight_decay=weight_decay,
            initial_accumulator_value=initial_accumulator_value,
            eps=eps,
        )
        defaults = {
            "lr": lr,
            "lr_decay": lr_decay,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value,
            "maximize": maximize,
        }
        super().__init__(params, defaults, state_dtype=state_dtype)

    def _new_state(self, name: str, param: Tensor, group: dict[str, Any]) -> Tensor:
        return super()._new_state(name, param, group).fill_(group["initial_accumulator_value"])
