"""Facts about this installation that other libraries ask for."""

from __future__ import annotations

from importlib import metadata, util
from typing import Any

from deepspeed import __version__ as version
from deepspeed.launcher.devices import built_for, find_devices

__all__ = ["git_branch", "git_hash", "version"]  # and the names of _ASKED

git_hash = "unknown"
git_branch = "unknown"

_OPS = {
    "async_io": "ds_aio",
    "gds": "ds_aio",
    "cpu_adam": "ds_kernels",
    "cpu_adagrad": "ds_kernels",
    "cpu_lion": "ds_kernels",
    "fused_adam": "ds_kernels",
    "fused_lamb": "ds_kernels",
    "fused_lion": "ds_kernels",
}


def _installed_ops() -> dict[str, bool]:
    """Old name of each native operation -> whether the package that has it is installed."""
    return {op: util.find_spec(package) is not None for op, package in _OPS.items()}


def _accelerator_name() -> str:
    kind = find_devices().kind
    return "cuda" if kind == "rocm" else kind


def _torch_info() -> dict[str, Any]:
    """Versions of the installed torch, as text without a patch level; '0.0' for what it lacks."""
    installed = metadata.version("torch").partition("+")[0]
    found: dict[str, Any] = {"version": ".".join(installed.split(".")[:2])}
    if built_for() == "cpu":
        return found | {
            "bf16_support": False,
            "cuda_version": "0.0",
            "nccl_version": "0.0",
            "hip_version": "0.0",
        }
    import torch  # only a build for an accelerator knows these

    nccl = (0, 0)
    if torch.distributed.is_nccl_available():
        nccl = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return found | {
        "bf16_support": torch.cuda.is_available() and torch.cuda.is_bf16_supported(),
        "cuda_version": ".".join((torch.version.cuda or "0.0").split(".")[:2]),
        "nccl_version": ".".join(map(str, nccl[:2])),
        "hip_version": ".".join((torch.version.hip or "0.0").split(".")[:2]),
    }


_ASKED = {
    "accelerator_name": _accelerator_name,
    "installed_ops": _installed_ops,
    "compatible_ops": _installed_ops,
    "torch_info": _torch_info,
}


def __getattr__(name: str) -> Any:
    if name in _ASKED:
        return _ASKED[name]()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
