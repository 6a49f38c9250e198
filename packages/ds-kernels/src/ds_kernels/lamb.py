"""LAMB with its moments in CPU memory."""

from __future__ import annotations

import torch

from ds_kernels import formulas
from ds_kernels.optimizer import KernelOptimizer, Params, check_hyper, refuse_amsgrad


class CPULamb(KernelOptimizer):
    """LAMB (You et al., 2020) over CPU tensors.

    Each parameter's step is scaled by |p|/|update|, bounded by `min_coeff` and `max_coeff`, or 1
    where a norm is zero.

    Args:
        params: tensors, named tensors or groups.
        lr, betas, eps, weight_decay: as in Adam, with decoupled decay inside the trust ratio.
        amsgrad: refused.
        bias_correction: divide the moments by 1 - beta**step.
        min_coeff, max_coeff: bounds of the trust ratio.
        maximize: ascend instead.
        state_dtype: dtype of the moments.
    """

    rule = formulas.LAMB

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        bias_correction: bool = True,
        min_coeff: float = 0.01,
        max_coeff: float = 10.0,
        maximize: bool = False,
        state_dtype: torch.dtype = torch.float32,
    ) -> None:
        refuse_amsgrad(amsgrad)
        check_hyper(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        check_hyper(min_coeff=min_coeff, max_coeff=max_coeff)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "bias_correction": bias_correction,
            "min_coeff": min_coeff,
            "max_coeff": max_coeff,
            "maximize": maximize,
        }
        super().__init__(params, defaults, state_dtype=state_dtype)

    def get_lamb_coeffs(self) -> list[float]:
        """Trust ratios of the last `step`, one a stepped parameter."""
        return [float(ratio) for ratio in self._ratios]
