"""What this installation runs and why, for `ds_report` and the curious."""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

import torch

from ds_kernels import backend


class ReportRow(NamedTuple):
    """One operation: `path` is how it runs here, `reason` why."""

    name: str
    path: str
    reason: str


def report() -> list[ReportRow]:
    """One row an operation; never raises for something that is merely missing."""
    chosen = backend.select()
    rows = [
        ReportRow(f"cpu_{name}", chosen.name, chosen.reason)
        for name in ("adam", "adagrad", "lion", "lamb", "sgd")
    ]
    path, reason = _gpu_path()
    names = ("fused_adam", "fused_lion", "fused_lamb", "fp_quantizer")
    rows += [ReportRow(name, path, reason) for name in names]
    if hasattr(torch.optim, "Muon"):
        return [*rows, ReportRow("muon", "torch", "torch.optim.Muon")]
    return [*rows, ReportRow("muon", "none", f"torch {torch.__version__} has none; 2.9 does")]


def _gpu_path() -> tuple[str, str]:
    if not torch.cuda.is_available():
        return "cpu", "no GPU here: CPU tensors take the path of the CPU kernels"
    if importlib.util.find_spec("triton") is None:
        return "torch", "triton is not installed: pip install ds-kernels[triton]"
    return "triton", f"triton kernels on {torch.cuda.get_device_name()}"
