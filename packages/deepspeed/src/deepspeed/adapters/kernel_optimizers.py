"""The optimizers of ds-kernels under their old names, with the old order of arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

import ds_kernels
from ds_kernels import OptionError
from ds_kernels.optimizer import KernelOptimizer, Outs, refuse_amsgrad


def _state_dtype(params: Iterable[Any], fp32: bool) -> tuple[list[Any], torch.dtype]:
    """The parameters as a list, and the moments' dtype: float32 or that of the parameters."""
    listed = list(params)
    if fp32 or not listed:
        return listed, torch.float32
    first = listed[0]
    while not isinstance(first, torch.Tensor):  # a group, or a (name, tensor) pair
        first = next(iter(first["params"])) if isinstance(first, dict) else first[-1]
    return listed, first.dtype


class DeepSpeedCPUAdam(ds_kernels.CPUAdam):
    """`ds_kernels.CPUAdam` with the old signature."""

    def __init__(
        self,
        model_params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        adamw_mode: bool = True,
        fp32_optimizer_states: bool = True,
    ) -> None:
        params, dtype = _state_dtype(model_params, fp32_optimizer_states)
        super().__init__(
            params,
            lr,
            tuple(betas),  # type: ignore[arg-type]  # JSON gives lists
            eps,
            weight_decay,
            amsgrad,
            adamw_mode=adamw_mode,
            bias_correction=bias_correction,
            state_dtype=dtype,
        )


class DeepSpeedCPUAdagrad(ds_kernels.CPUAdagrad):
    """`ds_kernels.CPUAdagrad` with the old signature."""

    def __init__(
        self,
        model_params: Iterable[Any],
        lr: float = 1e-2,
        eps: float = 1e-10,
        weight_decay: float = 0,
        amsgrad: bool = False,
        fp32_optimizer_states: bool = True,
    ) -> None:
        refuse_amsgrad(amsgrad)
        params, dtype = _state_dtype(model_params, fp32_optimizer_states)
        super().__init__(params, lr, weight_decay=weight_decay, eps=eps, state_dtype=dtype)


class DeepSpeedCPULion(ds_kernels.CPULion):
    """`ds_kernels.CPULion` with the old signature and defaults."""

    def __init__(
        self,
        model_params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0,
        fp32_optimizer_states: bool = True,
    ) -> None:
        params, dtype = _state_dtype(model_params, fp32_optimizer_states)
        super().__init__(params, lr, tuple(betas), weight_decay, state_dtype=dtype)  # type: ignore[arg-type]


class _OldStep(KernelOptimizer):
    """`step` with the arguments that only a former mixed-precision wrapper used."""

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        grads: Any = None,
        output_params: Any = None,
        scale: Any = None,
        grad_norms: Any = None,
        grad_scaler: Any = None,
        *,
        grad_scale: float = 1.0,
        out: Outs | None = None,
    ) -> Any:
        given = {"grads": grads, "output_params": output_params, "grad_norms": grad_norms}
        given |= {"grad_scaler": grad_scaler}
        used = [name for name, value in given.items() if value is not None]
        if used:
            raise OptionError(
                f"step: {', '.join(used)} is no longer used; set .grad and call step()"
            )
        factor = grad_scale / float(scale) if scale else grad_scale
        return super().step(closure, grad_scale=factor, out=out)


class FusedAdam(_OldStep, ds_kernels.FusedAdam):
    """`ds_kernels.FusedAdam` with the old signature."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        set_grad_none: bool = True,
    ) -> None:
        self.set_grad_none = set_grad_none
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            adamw_mode=adam_w_mode,
            bias_correction=bias_correction,
        )

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)


class FusedLion(_OldStep, ds_kernels.FusedLion):
    """`ds_kernels.FusedLion` with the old signature and defaults."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
    ) -> None:
        self.set_grad_none = set_grad_none
        super().__init__(params, lr, betas, weight_decay)

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        super().zero_grad(self.set_grad_none if set_to_none is None else set_to_none)


class FusedLamb(_OldStep, ds_kernels.FusedLamb):
    """`ds_kernels.FusedLamb` with the old signature."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        eps_inside_sqrt: bool = False,
        weight_decay: float = 0.0,
        max_grad_norm: float = 0.0,
        max_coeff: float = 10.0,
        min_coeff: float = 0.01,
        amsgrad: bool = False,
    ) -> None:
        if eps_inside_sqrt:
            raise OptionError("eps_inside_sqrt is not offered; leave it false")
        if max_grad_norm:
            raise OptionError("max_grad_norm: clip with the engine's gradient_clipping instead")
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            bias_correction=bias_correction,
            min_coeff=min_coeff,
            max_coeff=max_coeff,
        )
