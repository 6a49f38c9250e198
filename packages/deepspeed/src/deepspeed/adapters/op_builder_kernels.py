"""The op builders of the optimizers and quantizers: everything is built, so they answer at once."""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

import torch

import ds_kernels
from deepspeed.adapters.op_builder import OpBuilder
from ds_kernels import OptionError, backend


class KernelBuilder(OpBuilder):
    """An operation of ds-kernels; `load()` gives the package."""

    PACKAGE: ClassVar[str] = "ds_kernels"

    def load(self, verbose: bool = True) -> Any:
        """The module that holds the operation."""
        return ds_kernels

    def report(self) -> str:
        """How the operation runs here, in one line."""
        chosen = backend.select()
        return f"{chosen.name}: {chosen.reason}"


class CPUAdamOps:
    """The functions of the former `cpu_adam` module: optimizers by number, steps over tensors."""

    def __init__(self) -> None:
        self._adamw_modes: dict[int, bool] = {}

    def create_adam(
        self,
        optimizer_id: int,
        lr: float = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adamw_mode: bool = True,
        should_log: bool = False,
    ) -> int:
        """Register an optimizer; the rates come again with every update."""
        self._adamw_modes[optimizer_id] = adamw_mode
        return 0

    def adam_update(
        self,
        optimizer_id: int,
        step: int,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        weight_decay: float,
        bias_correction: bool,
        params: torch.Tensor,
        grads: torch.Tensor,
        exp_avg: torch.Tensor,
        exp_avg_sq: torch.Tensor,
    ) -> int:
        """One Adam step in place."""
        if optimizer_id not in self._adamw_modes:
            raise OptionError(f"adam_update: no optimizer {optimizer_id}; call create_adam first")
        ds_kernels.adam_step(
            params.detach(),
            grads,
            exp_avg,
            exp_avg_sq,
            step=step,
            lr=lr,
            betas=(beta1, beta2),
            eps=eps,
            weight_decay=weight_decay,
            adamw_mode=self._adamw_modes[optimizer_id],
            bias_correction=bias_correction,
        )
        return 0

    def destroy_adam(self, optimizer_id: int) -> int:
        """Forget an optimizer."""
        self._adamw_modes.pop(optimizer_id, None)
        return 0


class CPUAdamBuilder(KernelBuilder):
    """`load()` gives `create_adam`, `adam_update` and `destroy_adam`."""

    NAME = "cpu_adam"
    BUILD_VAR = "DS_BUILD_CPU_ADAM"

    def load(self, verbose: bool = True) -> CPUAdamOps:
        return CPUAdamOps()


class CPUAdagradBuilder(KernelBuilder):
    """`load()` gives the ds_kernels package."""

    NAME = "cpu_adagrad"
    BUILD_VAR = "DS_BUILD_CPU_ADAGRAD"


class CPULionBuilder(KernelBuilder):
    """`load()` gives the ds_kernels package."""

    NAME = "cpu_lion"
    BUILD_VAR = "DS_BUILD_CPU_LION"


class FusedAdamBuilder(KernelBuilder):
    """`load()` gives the ds_kernels package."""

    NAME = "fused_adam"
    BUILD_VAR = "DS_BUILD_FUSED_ADAM"


class FusedLambBuilder(KernelBuilder):
    """`load()` gives the ds_kernels package."""

    NAME = "fused_lamb"
    BUILD_VAR = "DS_BUILD_FUSED_LAMB"


class FusedLionBuilder(KernelBuilder):
    """`load()` gives the ds_kernels package."""

    NAME = "fused_lion"
    BUILD_VAR = "DS_BUILD_FUSED_LION"


class FPQuantizerBuilder(KernelBuilder):
    """`load()` gives `ds_kernels.fp_quantizer`."""

    NAME = "fp_quantizer"
    BUILD_VAR = "DS_BUILD_FP_QUANTIZER"

    def load(self, verbose: bool = True) -> Any:
        return importlib.import_module("ds_kernels.fp_quantizer")
