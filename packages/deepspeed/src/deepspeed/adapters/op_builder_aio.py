"""The op builders of tensor I/O: everything is built, so they answer at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import torch

import ds_aio
from deepspeed.adapters.op_builder import OpBuilder
from ds_aio import AioHandle, GdsHandle


class AsyncIOBuilder(OpBuilder):
    """Gives the handle that moves tensors to and from files."""

    NAME: ClassVar[str] = "async_io"
    BUILD_VAR: ClassVar[str] = "DS_BUILD_AIO"
    PACKAGE: ClassVar[str] = "ds_aio"

    def is_compatible(self, verbose: bool = False) -> bool:
        """True: where the kernel offers no asynchronous I/O, threads do the work."""
        return True

    def load(self, verbose: bool = False) -> SimpleNamespace:
        """A namespace with `aio_handle`, `aio_read`, `aio_write` and `deepspeed_memcpy`."""
        return SimpleNamespace(
            aio_handle=AioHandle,
            aio_read=aio_read,
            aio_write=aio_write,
            deepspeed_memcpy=deepspeed_memcpy,
        )

    def check_for_libaio_pkg(self) -> bool:
        """True: libaio is not needed."""
        return True

    def lib_sources(self) -> list[str]:
        return []

    def report(self) -> str:
        """How files are read and written here, in one line."""
        reasons = ds_aio.availability()
        chosen = next(name for name, reason in reasons.items() if not reason)
        passed = [f"{name}: {reason}" for name, reason in reasons.items() if reason]
        return "; ".join([chosen, *passed])


class GDSBuilder(AsyncIOBuilder):
    """Gives the handle that moves device tensors without a stop in host memory where it can."""

    NAME: ClassVar[str] = "gds"
    BUILD_VAR: ClassVar[str] = "DS_BUILD_GDS"

    def is_compatible(self, verbose: bool = False) -> bool:
        """Whether GPUDirect Storage is there; without it the handle stages through host memory."""
        return not ds_aio.gds_unavailable()

    def load(self, verbose: bool = False) -> SimpleNamespace:
        """A namespace with `gds_handle` beside what `AsyncIOBuilder` gives."""
        loaded = super().load(verbose)
        loaded.gds_handle = GdsHandle
        return loaded

    def report(self) -> str:
        """Whether device tensors go straight to storage, in one line."""
        reason = ds_aio.gds_unavailable()
        return f"staged through host memory: {reason}" if reason else "through KvikIO"


def aio_read(
    buffer: torch.Tensor,
    filename: str,
    block_size: int,
    queue_depth: int,
    single_submit: bool,
    overlap_events: bool,
    validate: bool,
) -> int:
    """One read with a handle of its own."""
    handle = AioHandle(block_size, queue_depth, single_submit, overlap_events)
    handle.read(buffer, filename, validate)
    return 0


def aio_write(
    buffer: torch.Tensor,
    filename: str,
    block_size: int,
    queue_depth: int,
    single_submit: bool,
    overlap_events: bool,
    validate: bool,
) -> int:
    """One write with a handle of its own."""
    handle = AioHandle(block_size, queue_depth, single_submit, overlap_events)
    handle.write(buffer, filename, validate)
    return 0


def deepspeed_memcpy(destination: torch.Tensor, source: torch.Tensor) -> int:
    """Copies `source` into `destination`."""
    destination.copy_(source)
    return 0
