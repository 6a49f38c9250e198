"""Adam with moments in CPU memory."""

from __future__ import annotations

import torch

from ds_kernels import formulas
from ds_kernels.optimizer import KernelOptimizer, Params, check_hyper, refuse_amsgrad


class CPUAdam(KernelOptimizer):
    """Adam over CPU tensors in one pass over memory; decoupled weight decay unless told otherwise.

    Positional arguments and defaults are those of `torch.optim.Adam`; `adamw_mode=False` gives its
    L2 decay, `adamw_mode=True` that of `torch.optim.AdamW`. State dicts interchange with both.

    Args:
        params: tensors, named tensors or groups.
        lr, betas, eps, weight_decay, maximize: as in torch.
        amsgrad: refused.
        adamw_mode: decoupled weight decay (AdamW) instead of L2 in the gradient.
        bias_correction: divide the moments by 1 - beta**step.
        state_dtype: dtype of the moments.
    """

    rule = formulas.ADAM

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        adamw_mode: bool = True,
        bias_correction: bool = True,
        maximize: bool = False,
        state_dtype: torch.dtype = torch.float32,
    ) -> None:
        refuse_amsgrad(amsgrad)
        check_hyper(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "amsgrad": False,
            "maximize": maximize,
            "decoupled_weight_decay": adamw_mode,
            "bias_correction": bias_correction,
        }
        super().__init__(params, defaults, state_dtype=state_dtype)


class CPUAdamW(CPUAdam):
    """`CPUAdam` with the defaults of `torch.optim.AdamW` (weight decay 0.01)."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        bias_correction: bool = True,
        maximize: bool = False,
        state_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            bias_correction=bias_correction,
            maximize=maximize,
            state_dtype=state_dtype,
        )
