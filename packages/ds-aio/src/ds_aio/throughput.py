"""The command `ds_io`: how fast one file is written or read with given settings."""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ds_aio.engine import Options
from ds_aio.errors import AioError
from ds_aio.files import File
from ds_aio.files import open as open_file
from ds_aio.gds import GdsHandle
from ds_aio.memory import aligned_tensor
from ds_aio.sizes import count_argument, show_size, size_argument


@dataclass(frozen=True)
class Trial:
    """What to measure. `device` is where the tensor lies; `gds` demands GPUDirect Storage."""

    path: Path
    io_size: int
    options: Options
    device: str = "cpu"
    gds: bool = False
    pinned: bool = True
    flush_page_cache: bool = False


def measure(trial: Trial, *, write: bool, loops: int, warmup: int = 0) -> list[float]:
    """Bytes a second of each loop. The file is made first, so that writes overwrite."""
    tensor = _make_tensor(trial)
    _ensure_file(trial, tensor)
    rates = []
    for loop in range(max(warmup, 0) + loops):
        if trial.flush_page_cache:
            _forget_pages(trial.path)
        begin = time.perf_counter()
        _move(trial, tensor, write=write)
        if loop >= max(warmup, 0):
            rates.append(trial.io_size / (time.perf_counter() - begin))
    return rates


def _make_tensor(trial: Trial) -> Tensor:
    if trial.device == "cpu" and trial.pinned:
        return aligned_tensor((trial.io_size,), lock=True).fill_(1)
    return torch.ones(trial.io_size, dtype=torch.uint8, device=trial.device)


def _ensure_file(trial: Trial, tensor: Tensor) -> None:
    if not trial.path.exists() or trial.path.stat().st_size != trial.io_size:
        with open_file(trial.path, "w", options=trial.options) as file:
            file.write(tensor).wait()


def _move(trial: Trial, tensor: Tensor, *, write: bool) -> None:
    if trial.gds:
        o = trial.options
        handle = GdsHandle(
            o.block_size,
            o.queue_depth,
            o.single_submit,
            o.overlap_events,
            o.intra_op_parallelism,
            gds="on",
        )
        (handle.sync_pwrite if write else handle.sync_pread)(tensor, str(trial.path))
        return
    file: File
    with open_file(trial.path, "r+" if write else "r", options=trial.options) as file:
        (file.write if write else file.read_into)(tensor).wait()


def _forget_pages(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `ds_io`."""
    parser = argparse.ArgumentParser(prog="ds_io", description="Throughput of one file.")
    parser.add_argument("--folder", default=".", help="where the test file is made")
    parser.add_argument("--io_size", type=size_argument, required=True, help="bytes, such as 1G")
    parser.add_argument("--read", action="store_true", help="read instead of write")
    parser.add_argument("--block_size", type=size_argument, default=1 << 20, help="such as 1M")
    parser.add_argument("--queue_depth", type=int, default=32)
    parser.add_argument("--single_submit", action="store_true")
    parser.add_argument("--sequential_requests", action="store_true", help="do not overlap")
    parser.add_argument("--io_parallel", type=int, default=1, help="threads for one request")
    parser.add_argument("--backend", default="auto", help="io_uring, linux_aio, threads, python")
    parser.add_argument("--loops", type=count_argument, default=3)
    parser.add_argument("--warmup_loops", type=int, default=1)
    parser.add_argument("--gpu", action="store_true", help="tensor in device memory")
    parser.add_argument("--use_gds", action="store_true", help="demand GPUDirect Storage")
    parser.add_argument("--pageable", action="store_true", help="ordinary memory, not locked")
    given = parser.parse_args(arguments)
    path = Path(given.folder) / f"ds_io.{os.getpid()}.tmp"
    try:
        options = Options(
            block_size=given.block_size,
            queue_depth=given.queue_depth,
            single_submit=given.single_submit,
            overlap_events=not given.sequential_requests,
            intra_op_parallelism=given.io_parallel,
            backend=given.backend,
        )
        trial = Trial(
            path,
            given.io_size,
            options,
            device=_device(given.gpu or given.use_gds),
            gds=given.use_gds,
            pinned=not given.pageable,
        )
        rates = measure(trial, write=not given.read, loops=given.loops, warmup=given.warmup_loops)
        with open_file(path, options=options) as file:
            report = file.report()
    except (AioError, OSError, RuntimeError) as error:  # of ours, of a file name, of memory
        sys.stderr.write(f"ds_io: {str(error).splitlines()[0]}\n")
        return 1
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
    kind = "read" if given.read else "write"
    sys.stdout.write(
        f"{kind} {show_size(given.io_size)} x {given.loops}: "
        f"median {statistics.median(rates) / 1e9:.2f} GB/s, best {max(rates) / 1e9:.2f} GB/s\n"
        f"{report}\n"
    )
    return 0


def _device(wanted: bool) -> str:
    if not wanted:
        return "cpu"
    if not torch.accelerator.is_available():
        raise AioError("--gpu: no accelerator is visible")
    return str(torch.accelerator.current_accelerator())
