"""Building a module's tensors on one device and in one format, without sharding."""

from __future__ import annotations

from typing import Any

import torch


class OnDevice:
    """Inside, new floating-point tensors have `dtype` and new tensors lie on `device`.

    Args:
        dtype: default floating-point format.
        device: `meta` builds a model without memory.
        enabled: False makes this do nothing.
    """

    def __init__(
        self, dtype: torch.dtype, device: str | torch.device = "meta", enabled: bool = True
    ) -> None:
        self._dtype, self._device, self._enabled = dtype, torch.device(device), enabled
        self._before: torch.dtype | None = None

    def __enter__(self) -> None:
        if self._enabled:
            self._before = torch.get_default_dtype()
            torch.set_default_dtype(self._dtype)
            self._device.__enter__()

    def __exit__(self, *exc: Any) -> None:
        if self._enabled and self._before is not None:
            self._device.__exit__(*exc)
            torch.set_default_dtype(self._before)
