"""Which numeric formats a run uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ds_core.errors import ConfigError
from ds_core.precision.scaler import LossScaler, StaticLossScaler

_ACCUMULATE = {
    torch.float32: (torch.float32,),
    torch.bfloat16: (torch.float32, torch.bfloat16),
    torch.float16: (torch.float32, torch.float16),
    torch.float64: (torch.float64,),
}


@dataclass(frozen=True)
class PrecisionSettings:
    """Formats of weights, masters, gradients and messages.

    Attributes:
        compute_dtype: format of the module's floating-point parameters; None leaves them alone.
        master_weights: keep fp32 copies of low-precision parameters for the optimizer.
        accumulate_dtype: format gradients accumulate in; None is fp32 (fp64 for fp64 parameters).
        communication_dtype: format gradients are reduced in; None is the accumulation format.
        make_scaler: makes the loss scaler of one engine.
    """

    compute_dtype: torch.dtype | None = None
    master_weights: bool = True
    accumulate_dtype: torch.dtype | None = None
    communication_dtype: torch.dtype | None = None
    make_scaler: Callable[[], LossScaler] = StaticLossScaler

    def accumulate_in(self, dtype: torch.dtype) -> torch.dtype:
        """The accumulation format for parameters of `dtype`.

        Raises:
            ConfigError: for a pair that is not supported, naming it.
        """
        if dtype not in _ACCUMULATE:
            raise ConfigError(
                f"parameters of {dtype} cannot be trained; supported: "
                + ", ".join(str(known) for known in _ACCUMULATE)
            )
        choice = self.accumulate_dtype
        if choice is None:
            return _ACCUMULATE[dtype][0]
        if dtype == torch.float64:
            return dtype
        if choice not in _ACCUMULATE[dtype]:
            raise ConfigError(
                f"grad_accum_dtype {choice} does not go with parameters of {dtype}; supported: "
                + ", ".join(str(known) for known in _ACCUMULATE[dtype])
            )
        return choice
