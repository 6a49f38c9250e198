"""The GPU twins: same arguments, same state dicts, tensors on any device.

Each step sends the tensors of a device to the fastest kernel for it: CPU tensors to the compiled
loops, others to a Triton multi-tensor kernel, or to torch's own where Triton is missing.
"""

from __future__ import annotations

import importlib
import importlib.util

import torch
from torch import Tensor

from ds_kernels import reference
from ds_kernels.adam import CPUAdam
from ds_kernels.formulas import Formula
from ds_kernels.lamb import CPULamb
from ds_kernels.lanes import Lane
from ds_kernels.lion import CPULion
from ds_kernels.optimizer import KernelOptimizer

TRITON_DEVICES = ("cuda", "xpu")


class AnyDevice(KernelOptimizer):
    """Mix-in that routes a step by the device of each parameter."""

    device = None

    def _apply(self, formula: Formula, lanes: list[Lane]) -> list[float | Tensor]:
        by_device: dict[torch.device, list[int]] = {}
        for index, lane in enumerate(lanes):
            by_device.setdefault(lane.param.device, []).append(index)
        ratios: list[float | Tensor] = [1.0] * len(lanes)
        for device, members in by_device.items():
            some = [lanes[i] for i in members]
            results = super()._apply(formula, some) if device.type == "cpu" else run(formula, some)
            for index, ratio in zip(members, results, strict=True):
                ratios[index] = ratio
        return ratios


def uses_triton(device: torch.device) -> bool:
    """Whether tensors of this device are stepped by the Triton kernels."""
    return device.type in TRITON_DEVICES and importlib.util.find_spec("triton") is not None


def run(formula: Formula, lanes: list[Lane]) -> list[float | Tensor]:
    """One update of lanes on one device that is not the CPU."""
    device = lanes[0].param.device
    if uses_triton(device):
        return list(importlib.import_module("ds_kernels.triton_kernels").run(formula, lanes))
    return reference.update_many(formula, lanes)


class FusedAdam(AnyDevice, CPUAdam):
    """`CPUAdam` for parameters on any device."""


class FusedLion(AnyDevice, CPULion):
    """`CPULion` for parameters on any device."""


class FusedLamb(AnyDevice, CPULamb):
    """`CPULamb` for parameters on any device."""
