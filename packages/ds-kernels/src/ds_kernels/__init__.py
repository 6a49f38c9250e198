"""Optimizers that step in CPU memory at memory bandwidth, with Triton twins for the GPU."""

from ds_kernels.adagrad import CPUAdagrad
from ds_kernels.adam import CPUAdam, CPUAdamW
from ds_kernels.errors import BackendError, KernelError, OptionError, TensorError
from ds_kernels.fused import FusedAdam, FusedLamb, FusedLion
from ds_kernels.lamb import CPULamb
from ds_kernels.lion import CPULion
from ds_kernels.memory import to_huge_pages
from ds_kernels.pending import PendingStep, StepQueue
from ds_kernels.reporting import ReportRow, report
from ds_kernels.sgd import CPUSGD
from ds_kernels.steps import adagrad_step, adam_step, lamb_step, lion_step, sgd_step

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "CPUAdagrad",
    "CPUAdam",
    "CPUAdamW",
    "CPULamb",
    "CPULion",
    "CPUSGD",
    "FusedAdam",
    "FusedLamb",
    "FusedLion",
    "KernelError",
    "OptionError",
    "PendingStep",
    "ReportRow",
    "StepQueue",
    "TensorError",
    "adagrad_step",
    "adam_step",
    "lamb_step",
    "lion_step",
    "report",
    "sgd_step",
    "to_huge_pages",
]
