"""Bringing a module to its device and compute format."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


def cast_module(
    module: nn.Module,
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    keep: Iterable[nn.Parameter] = (),
) -> dict[nn.Parameter, Tensor]:
    """Move `module` to `device` and its floating-point parameters to `dtype`, in place.

    Parameters stay the same objects. Buffers keep their format: what lies there (running
    statistics, rotary frequencies) is not trained and suffers from rounding.

    Returns:
        The fp32 values that `keep` parameters had before they were rounded, on `device`; the
        caller owns them.
    """
    originals: dict[nn.Parameter, Tensor] = {}
    if dtype is not None and dtype != torch.float32:
        originals = {
            param: param.detach().to(device) for param in keep if param.dtype == torch.float32
        }
    module.to(device)
    if dtype is not None:
        for param in module.parameters():
            if param.is_floating_point():
                param.data = param.data.to(dtype)
    return originals


class InputCast:
    """A hook that brings floating-point inputs of the module to its compute format."""

    key = "input_cast"

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def prepare_inputs(
        self, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        cast = tuple(self._cast(value) for value in args)
        return cast, {key: self._cast(value) for key, value in kwargs.items()}

    def _cast(self, value: object) -> object:
        if torch.is_tensor(value):
            return value.to(self._dtype) if value.is_floating_point() else value
        if isinstance(value, dict):
            return {key: self._cast(item) for key, item in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)._make(map(self._cast, value))  # type: ignore[attr-defined]
        if isinstance(value, list):
            return [self._cast(item) for item in value]
        if isinstance(value, tuple):
            return tuple(self._cast(item) for item in value)
        return value
