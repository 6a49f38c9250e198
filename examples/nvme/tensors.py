"""Write tensors to a disk and read them back: by handle, by file, by state dict.

python tensors.py --folder /local_nvme --size 256
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

import ds_aio
from deepspeed.ops.op_builder import AsyncIOBuilder


def by_handle(folder: Path, megabytes: int) -> None:
    """The calls of DeepNVMe: a handle, locked memory, work while bytes are on their way."""
    handle = AsyncIOBuilder().load().aio_handle(block_size=1 << 20, queue_depth=32)
    example = torch.empty(0, dtype=torch.float32)
    tensor = handle.new_cpu_locked_tensor(megabytes << 18, example).uniform_()
    handle.async_pwrite(tensor, str(folder / "tensor.bin"))
    product = torch.ones(256, 256) @ torch.ones(256, 256)  # meanwhile
    done = handle.wait()
    again = torch.empty_like(tensor)
    handle.sync_pread(again, str(folder / "tensor.bin"))
    print(f"handle: {done} transfer while computing {product[0, 0]:.0f}; {handle.report()}")
    print(f"handle: read back equal: {torch.equal(tensor, again)}")
    handle.free_cpu_locked_tensor(tensor)


def by_file(folder: Path) -> None:
    """A table on the disk; rows of it read in one request, at any offset."""
    table = torch.rand(10_000, 96)
    with ds_aio.open(folder / "table.bin", "w") as file:
        file.write(table).wait()
        rows, out = [9_999, 3, 517], torch.empty(3, 96)
        width = table[0].numel() * table.element_size()
        file.read_into_many([(out[i], row * width) for i, row in enumerate(rows)]).wait()
    print(f"file: rows {rows} of {len(table)} equal: {torch.equal(out, table[rows])}")


def state_dict(megabytes: int) -> dict[str, Tensor]:
    layers = max(1, megabytes // 16)
    return {f"layer.{number}.weight": torch.randn(2048, 2048) for number in range(layers)}


def torch_save(path: Path, tensors: dict[str, Tensor]) -> None:
    """`torch.save`, forced to the disk as `ds_aio.save` is."""
    with path.open("wb") as file:
        torch.save(tensors, file)
        file.flush()
        os.fsync(file.fileno())


def cold(path: Path) -> None:
    """Ask the kernel to forget the file, so that a read comes from the disk."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def compare(folder: Path, megabytes: int, repeats: int) -> dict[str, float]:
    """GB/s of a state dict to the disk and back, in turn; medians."""
    tensors = state_dict(megabytes)
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    ours, theirs = folder / "model.safetensors", folder / "model.pt"
    actions: dict[str, tuple[Path, Callable[[], object]]] = {
        "ds_aio.save": (ours, lambda: ds_aio.save(ours, tensors)),
        "torch.save, synced": (theirs, lambda: torch_save(theirs, tensors)),
        "ds_aio.load": (ours, lambda: ds_aio.load(ours)),
        "torch.load": (theirs, lambda: torch.load(theirs, weights_only=True)),
    }
    rates: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats):
        for name, (path, action) in actions.items():
            if "load" in name:
                cold(path)
            start = time.perf_counter()
            action()
            rates[name].append(size / (time.perf_counter() - start) / 1e9)
    return {name: median(found) for name, found in rates.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="on the disk; default: a temporary one here")
    parser.add_argument("--size", type=int, default=256, help="MiB of a state dict")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where rates.json goes")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="tensors-", dir=args.folder or args.out))
    try:
        by_handle(folder, min(args.size, 64))
        by_file(folder)
        rates = compare(folder, args.size, args.repeats)
    finally:
        shutil.rmtree(folder)
    for name, rate in rates.items():
        print(f"{name:20} {rate:6.2f} GB/s")
    (args.out / "rates.json").write_text(json.dumps(rates))


if __name__ == "__main__":
    main()
