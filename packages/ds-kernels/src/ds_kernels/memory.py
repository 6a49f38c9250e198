"""Where large tensors lie: huge pages for all that a step streams through, moments kept apart.

A step reads and writes four streams at once. On pages of 4 KiB the processor spends up to half of
that time on looking addresses up; on pages of 2 MiB next to none.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ds_kernels.lanes import Lane

HUGE_BYTES = 1 << 22
"""From this size on a tensor is worth huge pages."""

PAGE, LINE = 4096, 64
SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def zeros_beside(param: Tensor, dtype: torch.dtype, position: int = 0) -> Tensor:
    """Zeros of another dtype that lie in memory like `param`; `position` counts its moments.

    Large ones start at cache lines, each at another place of its page: streams that advance in step
    at the same place of their pages push one another out of the caches.
    """
    count = param.numel() * dtype.itemsize
    if param.device.type != "cpu" or count < HUGE_BYTES or not param.is_contiguous():
        return torch.zeros_like(param, dtype=dtype, memory_format=torch.preserve_format)
    memory = np.zeros(count + PAGE, dtype=np.uint8)  # untouched until the first step
    place = LINE * (1 + 21 * (1 + position))  # large tensors of torch start at the first line
    start = (place - memory.ctypes.data) % PAGE
    return torch.from_numpy(memory[start : start + count]).view(dtype).view(param.shape)


def to_huge_pages(tensor: Tensor) -> int:
    """Move a CPU tensor's memory onto huge pages; returns how many bytes lie on them afterwards.

    Contents and address stay. 0 where the system has none to give, where they are switched off
    (`/sys/kernel/mm/transparent_hugepage/enabled` says `never`) and without the compiled module.
    """
    try:
        native = importlib.import_module("ds_kernels._native")
    except ImportError:
        return 0
    if not SWITCH.exists() or "[never]" in SWITCH.read_text():
        return 0
    return int(native.to_huge_pages(tensor.data_ptr(), tensor.nbytes))


class HugePages:
    """Moves the large tensors of steps onto huge pages, those that stay where they are.

    A tensor is moved at the second step that finds it at the same place: moving costs a copy, which
    gradients that are allocated anew for each step would never earn back.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], tuple[int, int]] = {}
        self._moved: set[tuple[int, int]] = set()  # parts of the above, hence bounded

    def settle(self, lanes: Iterable[Lane]) -> None:
        """Look at the tensors of a step that was accepted: contiguous, alive, on the CPU."""
        for lane in lanes:
            if lane.param.nbytes < HUGE_BYTES // 2:  # bfloat16 has wider companions
                continue
            tensors = (lane.param, lane.grad, *lane.states, lane.out)
            for role, tensor in enumerate(tensors):
                if tensor is not None:
                    self._look((lane.param.data_ptr(), role), tensor)

    def _look(self, key: tuple[int, int], tensor: Tensor) -> None:
        place = (tensor.data_ptr(), tensor.nbytes)
        if self._places.get(key) != place:
            self._places[key] = place
            self._moved.discard(key)
        elif key not in self._moved:
            self._moved.add(key)
            if tensor.nbytes >= HUGE_BYTES:
                to_huge_pages(tensor)
