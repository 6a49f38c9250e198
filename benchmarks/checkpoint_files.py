"""Save and load of one rank's state: ours, torch.save, safetensors, and the disk itself.

    python benchmarks/checkpoint_files.py [--gib 1] [--rounds 5] [--folder DIR]

All in one run, interleaved, medians. A save counts until its bytes are on the disk (fsync); a load
is measured with the file in the page cache, and ours verifies checksums first.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from ds_core.checkpoint import AsyncSaver, open_checkpoint, save
from ds_core.contracts.shard import WEIGHT, TensorShard

TENSORS = 64


def make_tensors(gib: float) -> dict[str, torch.Tensor]:
    numel = int(gib * 2**30 / 4 / TENSORS)
    return {f"layer.{i}.weight": torch.randn(numel) for i in range(TENSORS)}


def shards_of(tensors: dict[str, torch.Tensor]) -> list[TensorShard]:
    return [TensorShard(name, WEIGHT, tuple(t.shape), 0, t) for name, t in tensors.items()]


def fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def floor_write(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    """Plain writes of the same bytes, and one fsync."""
    with open(folder / "raw", "wb", buffering=0) as file:
        for tensor in tensors.values():
            file.write(tensor.numpy().data)
        os.fsync(file.fileno())


def torch_write(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    torch.save(tensors, folder / "torch.pt")
    fsync(folder / "torch.pt")


def safetensors_write(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    save_file(tensors, folder / "plain.safetensors")
    fsync(folder / "plain.safetensors")


def ours_write(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    save(folder, "ours", shards=shards_of(tensors))


def floor_read(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    with open(folder / "raw", "rb", buffering=0) as file:
        for tensor in tensors.values():
            file.readinto(tensor.numpy().data)


def copy_all(tensors: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        tensor.copy_(found[name])


def torch_read(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    copy_all(tensors, torch.load(folder / "torch.pt", weights_only=True))


def safetensors_read(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    copy_all(tensors, load_file(folder / "plain.safetensors"))


def ours_read(tensors: dict[str, torch.Tensor], folder: Path, *, verify: bool = True) -> None:
    with open_checkpoint(folder, "ours", verify=verify) as checkpoint:
        for name, tensor in tensors.items():
            checkpoint.reader.read(name, WEIGHT, 0, tensor)


def ours_read_unverified(tensors: dict[str, torch.Tensor], folder: Path) -> None:
    ours_read(tensors, folder, verify=False)


WRITES = {
    "disk: write + fsync": floor_write,
    "ds-core save": ours_write,
    "safetensors save_file": safetensors_write,
    "torch.save": torch_write,
}
READS = {
    "page cache: read into place": floor_read,
    "ds-core load, verified": ours_read,
    "ds-core load, not verified": ours_read_unverified,
    "safetensors load_file": safetensors_read,
    "torch.load": torch_read,
}


def measure(
    cases: dict[str, Callable[[dict[str, torch.Tensor], Path], None]],
    tensors: dict[str, torch.Tensor],
    folder: Path,
    rounds: int,
) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for index in range(rounds):
        names = list(cases)
        for name in names[index % len(names) :] + names[: index % len(names)]:
            os.sync()
            start = time.perf_counter()
            cases[name](tensors, folder)
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(found) for name, found in seconds.items()}


def stall(tensors: dict[str, torch.Tensor], folder: Path, rounds: int) -> float:
    """Seconds a training loop stands still for a save in the background."""
    seconds = []
    with AsyncSaver() as saver:
        for _ in range(rounds):
            start = time.perf_counter()
            saver.save(folder, "background", shards=shards_of(tensors))
            seconds.append(time.perf_counter() - start)
            saver.wait()
    return statistics.median(seconds[1:])


def table(title: str, medians: dict[str, float], nbytes: int) -> None:
    floor = next(iter(medians.values()))
    print(f"\n| {title} | s | GB/s | of the floor |\n| --- | ---: | ---: | ---: |")
    for name, seconds in medians.items():
        share = f"{floor / seconds:.2f}"
        print(f"| {name} | {seconds:.2f} | {nbytes / seconds / 1e9:.2f} | {share} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None)
    arguments = parser.parse_args()
    tensors = make_tensors(arguments.gib)
    nbytes = sum(tensor.numel() * 4 for tensor in tensors.values())
    folder = Path(tempfile.mkdtemp(dir=arguments.folder))
    try:
        for name in ("raw", "torch.pt", "plain.safetensors"):
            (folder / name).unlink(missing_ok=True)
        table("save", measure(WRITES, tensors, folder, arguments.rounds), nbytes)
        table("load", measure(READS, tensors, folder, arguments.rounds), nbytes)
        seconds = stall(tensors, folder, arguments.rounds)
        print(f"\nbackground save: training stands still for {seconds:.2f} s")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
