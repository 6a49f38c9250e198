"""Lion with its moment in CPU memory."""

from __future__ import annotations

import torch

from ds_kernels import formulas
from ds_kernels.optimizer import KernelOptimizer, Params, check_hyper


class CPULion(KernelOptimizer):
    """Lion (Chen et al., 2023) over CPU tensors in one pass, with decoupled weight decay.

    Args:
        params: tensors, named tensors or groups.
        lr: learning rate; Lion wants a third to a tenth of AdamW's.
        betas: weight of the moment in the direction, then in its own average.
        weight_decay: decoupled decay.
        maximize: ascend instead.
        state_dtype: dtype of the moment.
    """

    rule = formulas.LION

    def __init__(
        self,
        params: Params,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        state_dtype: torch.dtype = torch.float32,
    ) -> None:
        check_hyper(lr=lr, betas=betas, weight_decay=weight_decay)
        defaults = {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize}
        super().__init__(params, defaults, state_dtype=state_dtype)
