"""How much memory is in use."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from ds_profiler.result import Profile

logger = logging.getLogger(__name__)

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes: of this process on the host, and of the current accelerator (0 without one)."""

    host: int
    host_peak: int
    device: int
    device_peak: int
    device_reserved: int


def memory_use() -> MemoryUse:
    """What is in use now."""
    host, host_peak = _host()
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return MemoryUse(host, host_peak, 0, 0, 0)
    return MemoryUse(
        host,
        host_peak,
        torch.cuda.memory_allocated(),
        torch.cuda.max_memory_allocated(),
        torch.cuda.memory_reserved(),
    )


def memory_line() -> str:
    """What is in use now, in one line."""
    use = memory_use()
    return (
        f"device memory {use.device / _GIB:.2f} GiB, peak {use.device_peak / _GIB:.2f} GiB, "
        f"reserved {use.device_reserved / _GIB:.2f} GiB; "
        f"host memory {use.host / _GIB:.2f} GiB, peak {use.host_peak / _GIB:.2f} GiB"
    )


def see_memory_usage(message: str, force: bool = False, *, rank: int = 0) -> None:
    """Log `message` and the memory in use, if `force`, on rank 0."""
    if force and rank == 0:
        logger.info("%s: %s", message, memory_line())


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """Bytes that training a profiled model takes on one device, without sharding."""

    parameters: int
    gradients: int
    optimizer: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.gradients + self.optimizer + self.activations


def estimate_training_memory(
    profile: Profile, *, optimizer_bytes: int = 8, gradient_bytes: int = 4
) -> TrainingMemory:
    """What training needs, from a profile (taken on the meta device, if you like).

    Args:
        profile: a profile whose forward pass kept its activations (gradients enabled).
        optimizer_bytes: optimizer state a parameter: 8 for Adam in fp32, 12 with fp32 masters.
        gradient_bytes: bytes of a gradient element.
    """
    return TrainingMemory(
        parameters=profile.root.param_bytes,
        gradients=gradient_bytes * profile.params,
        optimizer=optimizer_bytes * profile.params,
        activations=profile.root.activation_bytes,
    )


def _host() -> tuple[int, int]:
    """Resident bytes of this process, now and at most; 0 where /proc is not there."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0, 0
    found = {
        key: int(value.split()[0]) * 1024
        for key, _, value in (line.partition(":") for line in status.read_text().splitlines())
        if key in ("VmRSS", "VmHWM")
    }
    return found.get("VmRSS", 0), found.get("VmHWM", 0)
