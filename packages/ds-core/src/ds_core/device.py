"""Which device this process computes on, through `torch.accelerator`."""

from __future__ import annotations

import torch


def is_available() -> bool:
    """True if an accelerator (cuda, xpu, mps, ...) can be used; initialises none."""
    return torch.accelerator.is_available()


def device_type() -> str:
    """`cuda`, `xpu`, ... or `cpu` where there is no accelerator."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if accelerator is None else accelerator.type


def local_device(local_rank: int) -> torch.device:
    """The device of a rank: accelerator number `local_rank` of this host, or the CPU."""
    kind = device_type()
    return torch.device("cpu") if kind == "cpu" else torch.device(kind, local_rank)


def set_device(device: torch.device) -> None:
    """Make `device` the current one; nothing to do for the CPU."""
    if device.type != "cpu":
        torch.accelerator.set_device_index(device)


def synchronize(device: torch.device) -> None:
    """Block until all work queued on `device` is done; nothing to do for the CPU."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def default_backend(kind: str) -> str:
    """The collective library for a device type: `nccl`, `xccl`, ... or `gloo`."""
    return torch.distributed.get_default_backend_for_device(kind)
