"""Tensor file I/O at the device's speed: ours by backend, fio, and what people use instead.

All rows of one table are measured in one run, in turn, several times; medians are compared. Reads
are cold or go around the page cache. fio and the peer run in their own processes at the same block
size and queue depth.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import ds_aio

# fio's plain engines, and io_uring with everything registered beforehand.
FIO_ENGINES = {
    "fio io_uring": ["--ioengine=io_uring"],
    "fio io_uring, registered": ["--ioengine=io_uring", "--fixedbufs", "--registerfiles"],
    "fio libaio": ["--ioengine=libaio"],
}
PEER_CODE = """
import sys, time, torch
from deepspeed.ops.op_builder import AsyncIOBuilder
kind, path, size, block, depth, pinned = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:7])
h = AsyncIOBuilder().load(verbose=False).aio_handle(block, depth, False, True, 1)
t = torch.empty(size, dtype=torch.uint8)
t = h.new_cpu_locked_tensor(size, t) if pinned else t
t.fill_(5)
begin = time.perf_counter()
(h.sync_pwrite if kind == "write" else h.sync_pread)(t, path)
print("SECONDS", time.perf_counter() - begin)
"""


def drop_cache(path: Path) -> None:
    """Forgets what the page cache holds of a file."""
    fd = os.open(path, os.O_RDONLY)
    os.fdatasync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


class Bench:
    """The rows of one table: name -> one measurement in bytes a second."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.path = Path(args.folder) / "ds_aio_bench"
        self.size: int = args.size
        self.block: int = args.block
        self.depth: int = args.depth
        self.peer: str = args.peer_python
        # Bytes that nobody can compress, in memory that direct I/O can use and in torch's own.
        tile = torch.randint(0, 256, (32 << 20,), dtype=torch.uint8)
        self.pageable = tile.repeat(-(-self.size // len(tile)))[: self.size]
        self.aligned = ds_aio.aligned_tensor((self.size,)).copy_(self.pageable)

    def options(self, backend: str, block: int) -> ds_aio.Options:
        return ds_aio.Options(block_size=block, queue_depth=self.depth, backend=backend)

    def ours(self, backend: str, memory: torch.Tensor, *, write: bool) -> float:
        with ds_aio.open(self.path, "r+", options=self.options(backend, self.block)) as file:
            move = file.write if write else file.read_into
            return self.size / timed(lambda: move(memory).wait())

    def ours_new_file(self) -> float:
        self.path.unlink()
        with ds_aio.open(self.path, "w", options=self.options("auto", self.block)) as file:
            return self.size / timed(lambda: file.write(self.aligned).wait())

    def ours_random(self, backend: str, *, write: bool, block: int = 65536) -> float:
        count = self.size // block
        order = torch.randperm(self.size // block)[:count].tolist()
        rows = self.aligned[: count * block].view(count, block)
        pieces = [(rows[i], block * place) for i, place in enumerate(order)]
        with ds_aio.open(self.path, "r+", options=self.options(backend, block)) as file:
            move = file.write_many if write else file.read_into_many
            return count * block / timed(lambda: move(pieces).wait())

    def fio(self, engine: str, kind: str, block: int, total: int) -> float:
        command = [
            "fio", "--name=t", f"--filename={self.path}", f"--size={self.size}",
            f"--io_size={total}", *FIO_ENGINES[engine], f"--bs={block}", f"--rw={kind}",
            f"--iodepth={self.depth}", "--direct=1", "--overwrite=1", "--randrepeat=0",
            "--output-format=terse", "--terse-version=3",
        ]  # fmt: skip
        fields = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split(
            ";"
        )
        return 1024.0 * float(fields[47 if "write" in kind else 6])

    def peer_row(self, kind: str, *, pinned: bool) -> float:
        arguments = [kind, self.path, self.size, self.block, self.depth, int(pinned)]
        out = subprocess.run(
            [self.peer, "-c", PEER_CODE, *map(str, arguments)],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": f"{Path(self.peer).parent}:{os.environ['PATH']}"},
        ).stdout
        return self.size / float(out.rsplit("SECONDS", 1)[1])

    def buffered(
        self, name: str, write: Callable[[Path], object], read: Callable[[Path], object]
    ) -> tuple[Callable[[], float], Callable[[], float]]:
        other = self.path.with_suffix(f".{name}")

        def durable() -> None:
            write(other)
            fd = os.open(other, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)

        def measure_write() -> float:
            return self.size / timed(durable)

        def measure_read() -> float:
            if not other.exists():
                durable()
            drop_cache(other)
            return self.size / timed(lambda: read(other))

        return measure_write, measure_read

    def sequential(self) -> dict[str, dict[str, Callable[[], float]]]:
        torch_save = self.buffered("torch", lambda p: torch.save(self.pageable, p), torch.load)
        array = self.pageable.numpy()
        numpy_io = self.buffered(
            "numpy", lambda p: array.tofile(p), lambda p: np.fromfile(p, dtype=np.uint8)
        )
        writes: dict[str, Callable[[], float]] = {}
        reads: dict[str, Callable[[], float]] = {}
        for engine in FIO_ENGINES:
            writes[engine] = lambda e=engine: self.fio(e, "write", self.block, self.size)
            reads[engine] = lambda e=engine: self.fio(e, "read", self.block, self.size)
        for backend in ("io_uring", "linux_aio", "threads"):
            for kind, memory in (("aligned", self.aligned), ("pageable", self.pageable)):
                name = f"ours {backend}, {kind}"
                writes[name] = lambda b=backend, m=memory: self.ours(b, m, write=True)
                reads[name] = lambda b=backend, m=memory: self.ours(b, m, write=False)
        writes["ours, new file"] = self.ours_new_file
        if self.peer:
            for pinned, kind in ((True, "pinned"), (False, "pageable")):
                name = f"peer aio_handle, {kind}"
                writes[name] = lambda p=pinned: self.peer_row("write", pinned=p)
                reads[name] = lambda p=pinned: self.peer_row("read", pinned=p)
        writes["torch.save + fsync"], reads["torch.load, cold"] = torch_save
        writes["numpy tofile + fsync"], reads["numpy fromfile, cold"] = numpy_io
        return {"write": writes, "read": reads}

    def random(self) -> dict[str, dict[str, Callable[[], float]]]:
        total = self.size
        writes: dict[str, Callable[[], float]] = {}
        reads: dict[str, Callable[[], float]] = {}
        for engine in FIO_ENGINES:
            writes[engine] = lambda e=engine: self.fio(e, "randwrite", 65536, total)
            reads[engine] = lambda e=engine: self.fio(e, "randread", 65536, total)
        for backend in ("io_uring", "linux_aio", "threads"):
            writes[f"ours {backend}"] = lambda b=backend: self.ours_random(b, write=True)
            reads[f"ours {backend}"] = lambda b=backend: self.ours_random(b, write=False)
        return {"random write": writes, "random read": reads}


def run(rows: dict[str, Callable[[], float]], repeat: int) -> dict[str, list[float]]:
    """Every row once, then all again: a change of the machine's mood meets all alike."""
    seen: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(repeat):
        for name, measure in rows.items():
            seen[name].append(measure())
    return seen


def show(title: str, seen: dict[str, list[float]]) -> None:
    best = max(statistics.median(v) for name, v in seen.items() if name.startswith("fio"))
    print(f"\n| {title} | GB/s (median) | min - max | of fio's best |\n|---|---|---|---|")
    for name, values in seen.items():
        mid = statistics.median(values)
        span = f"{min(values) / 1e9:.2f} - {max(values) / 1e9:.2f}"
        print(f"| {name} | {mid / 1e9:.2f} | {span} | {mid / best:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default=".")
    parser.add_argument("--size", type=int, default=1 << 30)
    parser.add_argument("--block", type=int, default=1 << 20)
    parser.add_argument("--depth", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--peer-python", default="", help="interpreter that has the peer installed")
    parser.add_argument(
        "--only", nargs="+", default=["write", "read", "random write", "random read"]
    )
    args = parser.parse_args()
    if shutil.which("fio") is None:
        sys.exit("fio is the floor of this benchmark: install it")
    bench = Bench(args)
    try:
        bench.fio("fio libaio", "write", 1 << 20, bench.size)
        tables = bench.sequential() | bench.random()
        for title in args.only:
            show(title, run(tables[title], args.repeat))
    finally:
        for path in bench.path.parent.glob("ds_aio_bench*"):
            path.unlink()


if __name__ == "__main__":
    main()
