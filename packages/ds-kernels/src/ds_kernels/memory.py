"""Zeroed CPU memory for moments, on huge pages where they are large."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

HUGE_BYTES = 1 << 22
"""From this size on numpy asks the kernel for huge pages (its own threshold)."""


def zeros_beside(param: Tensor, dtype: torch.dtype) -> Tensor:
    """Zeros of another dtype that lie in memory like `param`.

    A step streams through several large buffers at once; with 4 KiB pages the address translation
    costs up to a sixth of the bandwidth. numpy's allocator advises huge pages, torch's does not.
    """
    count = param.numel() * dtype.itemsize
    if param.device.type != "cpu" or count < HUGE_BYTES or not param.is_contiguous():
        return torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)
    return torch.from_numpy(np.zeros(count, dtype=np.uint8)).view(dtype).view(param.shape)
