"""What people use for tensors in files today, as rows of benchmarks/aio.py.

All of it goes through the page cache: writes count until they are synced, reads begin with nothing
of the file cached and count until every byte is in memory.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

# (file, rows of equal length, the place of each row in the file)
Rows = Callable[[Path, Tensor, Sequence[int]], object]
PEER_CODE = """
import random, sys, time, torch
from deepspeed.ops.op_builder import AsyncIOBuilder
kind, path, size, block, depth, pinned = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:7])
h = AsyncIOBuilder().load(verbose=False).aio_handle(block, depth, False, True, 1)
t = torch.empty(size, dtype=torch.uint8)
t = h.new_cpu_locked_tensor(size, t) if pinned else t
t.fill_(5)
rows = t.view(-1, block)
order = random.sample(range(len(rows)), len(rows))
begin = time.perf_counter()
if kind.startswith("rand"):
    move = h.async_pwrite if kind == "randwrite" else h.async_pread
    for first in range(0, len(rows), depth):
        for row in range(first, min(first + depth, len(rows))):
            move(rows[row], path, order[row] * block)
        h.wait()
else:
    (h.sync_pwrite if kind == "write" else h.sync_pread)(t, path)
print("SECONDS", time.perf_counter() - begin)
"""


@dataclass(frozen=True)
class Rival:
    """A way to keep one flat tensor in a file.

    Attributes:
        saves: writes the whole of it.
        loads: reads the whole of it into new memory.
        writes_rows: overwrites rows of it in the given order, where the way has such a thing.
        reads_rows: fills rows from it in the given order.
    """

    saved_as: str
    loaded_as: str
    saves: Callable[[Path, Tensor], object]
    loads: Callable[[Path], object]
    reads_rows: Rows
    writes_rows: Rows | None


def touch(tensor: Tensor) -> None:
    """Brings every page of a mapped tensor into memory."""
    tensor.view(torch.uint8).reshape(-1)[::4096].sum()


def sync(path: Path) -> None:
    """Waits until the device has all of the file."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def drop_cache(path: Path) -> None:
    """Forgets what the page cache holds of a file."""
    fd = os.open(path, os.O_RDONLY)
    os.fdatasync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def _mapped(path: Path, rows: Tensor, *, write: bool) -> np.memmap:
    return np.memmap(path, np.uint8, "r+" if write else "r", shape=tuple(rows.shape))


def _numpy_reads(path: Path, rows: Tensor, order: Sequence[int]) -> None:
    mapped, out = _mapped(path, rows, write=False), rows.numpy()
    for row, place in enumerate(order):
        out[row] = mapped[place]


def _numpy_writes(path: Path, rows: Tensor, order: Sequence[int]) -> None:
    mapped, given = _mapped(path, rows, write=True), rows.numpy()
    for row, place in enumerate(order):
        mapped[place] = given[row]
    mapped.flush()


def _torch_reads(path: Path, rows: Tensor, order: Sequence[int]) -> None:
    mapped = torch.load(path, mmap=True).view(rows.shape)
    for row, place in enumerate(order):
        rows[row].copy_(mapped[place])


def _safetensors_reads(path: Path, rows: Tensor, order: Sequence[int]) -> None:
    block = rows.shape[1]
    with safetensors.safe_open(path, "pt") as file:
        whole = file.get_slice("t")
        for row, place in enumerate(order):
            rows[row].copy_(whole[place * block : (place + 1) * block])


RIVALS = {
    "torch": Rival(
        "torch.save + fsync",
        "torch.load, cold",
        lambda path, tensor: torch.save(tensor, path),
        torch.load,
        _torch_reads,
        None,
    ),
    "safetensors": Rival(
        "safetensors save_file + fsync",
        "safetensors load_file, cold",
        lambda path, tensor: safetensors.torch.save_file({"t": tensor}, path),
        lambda path: touch(safetensors.torch.load_file(path)["t"]),
        _safetensors_reads,
        None,
    ),
    "numpy": Rival(
        "numpy tofile + fsync",
        "numpy fromfile, cold",
        lambda path, tensor: tensor.numpy().tofile(path),
        lambda path: np.fromfile(path, dtype=np.uint8),
        _numpy_reads,
        _numpy_writes,
    ),
}


def build_peer(python: str) -> None:
    """Lets the peer compile its handle, if it has not yet, before anything is measured."""
    code = "from deepspeed.ops.op_builder import AsyncIOBuilder as B; B().load(verbose=False)"
    subprocess.run(
        [python, "-c", code], check=True, capture_output=True, env=peer_env(python), timeout=600
    )


def peer_env(python: str) -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(python).parent}:{os.environ['PATH']}"}


def peer_seconds(
    python: str, kind: str, path: Path, sizes: tuple[int, int, int], *, pinned: bool
) -> float:
    """How long the peer's handle takes; `sizes` are those of the file, a block and the queue."""
    command = [python, "-c", PEER_CODE, kind, str(path), *map(str, sizes), str(int(pinned))]
    run = subprocess.run(
        command, check=True, capture_output=True, text=True, env=peer_env(python), timeout=100
    )
    return float(run.stdout.rsplit("SECONDS", 1)[1])
