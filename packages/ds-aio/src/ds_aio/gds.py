"""GPUDirect Storage through KvikIO, looked for at run time only."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
from typing import Any, Literal

import torch
from torch import Tensor

from ds_aio.buffers import BufferLike, as_bytes
from ds_aio.errors import AioError, BackendUnavailable, UnfitBuffer, transfer_error
from ds_aio.handle import AioHandle, Name
from ds_aio.staging import StagedTransfer, is_on_device
from ds_aio.transfer import Transfer


def gds_unavailable() -> str:
    """Why device tensors cannot move without a stop in host memory; empty if they can."""
    if not torch.cuda.is_available():
        return "no CUDA device is visible"
    try:
        driver: Any = importlib.import_module("kvikio.cufile_driver")  # an extra without types
    except (ImportError, OSError) as error:
        return f"KvikIO cannot be loaded ({error}); pip install 'ds-aio[gds]'"
    try:
        usable = bool(driver.get("is_gds_available"))
    except (RuntimeError, OSError) as error:
        return f"cuFile does not start ({error})"
    return "" if usable else "cuFile finds no GPUDirect Storage on this host (nvidia-fs)"


def require_gds() -> None:
    """Raises `BackendUnavailable` with the reason where GPUDirect Storage cannot be used."""
    reason = gds_unavailable()
    if reason:
        raise BackendUnavailable(f"GPUDirect Storage was asked for, but {reason}")


class GdsHandle(AioHandle):
    """An `AioHandle` that moves CUDA tensors straight between device memory and storage.

    Args:
        gds: `auto` stages through host memory where GPUDirect Storage is absent or refuses a file,
            and says why in `report`; `on` fails instead; `off` always stages.
    """

    def __init__(
        self,
        block_size: int = 1048576,
        queue_depth: int = 128,
        single_submit: bool = False,
        overlap_events: bool = False,
        intra_op_parallelism: int = 1,
        *,
        gds: Literal["auto", "on", "off"] = "auto",
    ) -> None:
        if gds not in ("auto", "on", "off"):
            raise AioError(f"gds={gds!r}: choose 'auto', 'on' or 'off'")
        if gds == "on":
            require_gds()
        super().__init__(
            block_size, queue_depth, single_submit, overlap_events, intra_op_parallelism
        )
        self._demanded = gds == "on"
        reason = "switched off" if gds == "off" else gds_unavailable()
        if reason:
            self._engine.note(
                f"GPUDirect Storage not used, tensors pass through host memory: {reason}"
            )
        self._kvikio: Any = None if reason else importlib.import_module("kvikio")

    def new_pinned_device_tensor(self, num_elem: int, example_tensor: Tensor) -> Tensor:
        """A flat tensor of the example's dtype and device, known to cuFile."""
        tensor = torch.empty(num_elem, dtype=example_tensor.dtype, device=example_tensor.device)
        self.pin_device_tensor(tensor)
        return tensor

    def free_pinned_device_tensor(self, tensor: Tensor) -> bool:
        """Takes the tensor back from cuFile and leaves it empty."""
        self.unpin_device_tensor(tensor)
        tensor.set_()  # type: ignore[call-overload]  # no stub for the form without arguments
        return True

    def pin_device_tensor(self, tensor: Tensor) -> bool:
        """Makes a device tensor known to cuFile. False where there is nothing to pin."""
        if self._kvikio is None or not is_on_device(tensor):
            return False
        self._kvikio.memory_register(as_bytes(tensor))
        return True

    def unpin_device_tensor(self, tensor: Tensor) -> bool:
        """Undoes `pin_device_tensor`."""
        if self._kvikio is None or not is_on_device(tensor):
            return False
        self._kvikio.memory_deregister(as_bytes(tensor))
        return True

    def _start(
        self, buffer: BufferLike, filename: Name, offset: int, *, write: bool, here: bool
    ) -> Transfer | StagedTransfer:
        if self._kvikio is None or not is_on_device(buffer) or isinstance(filename, int):
            return super()._start(buffer, filename, offset, write=write, here=here)
        path = os.fsdecode(filename)
        if not buffer.is_contiguous():
            raise UnfitBuffer("the device tensor is not contiguous: use .contiguous()")
        if write:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        try:
            request = _GdsRequest(self._kvikio, as_bytes(buffer), path, offset, write=write)
        except (RuntimeError, OSError) as error:
            if self._demanded:
                raise BackendUnavailable(f"GPUDirect Storage refuses {path!r}: {error}") from error
            self._engine.note(f"GPUDirect Storage refuses {path!r}: {error}")
            return super()._start(buffer, filename, offset, write=write, here=here)
        action = "write" if write else "read"
        return Transfer(request, action=action, path=path, offset=offset, wanted=request.wanted)


class _GdsRequest:
    """A transfer that KvikIO works on."""

    def __init__(self, kvikio: Any, memory: Tensor, path: str, offset: int, *, write: bool) -> None:
        self.wanted = memory.numel()
        self._memory = memory
        self._path = path
        self._offset = offset
        # What the device still computes into the tensor must be there before cuFile reads it.
        torch.accelerator.current_stream(memory.device).synchronize()
        self._file = kvikio.CuFile(path, "r+" if write else "r")
        move = self._file.pwrite if write else self._file.pread
        self._future = move(memory, self.wanted, offset)
        self._moved: int | None = None

    def done(self) -> bool:
        return self._moved is not None or bool(self._future.done())

    def wait(self) -> None:
        if self._moved is not None:
            return
        try:
            self._moved = int(self._future.get())
        except (RuntimeError, OSError) as error:
            raise transfer_error(
                errno.EIO,
                f"GPUDirect transfer ({error})",
                self._path,
                offset=self._offset,
                wanted=self.wanted,
            ) from error
        finally:
            self._file.close()

    def outcome(self) -> tuple[int, int, bool, int]:
        moved = self._moved or 0
        return moved, 0, moved < self.wanted, self._offset + moved


gds_handle = GdsHandle
