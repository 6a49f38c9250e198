"""Tensor file I/O at the device's speed: ours by backend, fio, and what people use instead.

All rows of one table are measured in one run, in turn, several times, each time from another row
on; medians are compared. Reads are cold or go around the page cache. fio and the peer run in their
own processes at the same block size and queue depth. fio moves everything through as many blocks as
the queue is deep, which it has touched beforehand, and the peer fills its tensor first; so ours are
touched first, too. Rows in random order with `fio's memory` move all through so few blocks as well,
the others through memory as large as the file. Rows called `idle` were used a minute ago, rows
called `fresh` never; before each of these as much memory is used and given back, so that none gets
memory that the row before it let go of while another has to wait for the host.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from aio_rivals import RIVALS, Rival, build_peer, drop_cache, peer_seconds, sync

import ds_aio

# fio's plain engines, and io_uring with everything registered beforehand.
FIO_ENGINES = {
    "fio io_uring": ["--ioengine=io_uring"],
    "fio io_uring, registered": ["--ioengine=io_uring", "--fixedbufs", "--registerfiles"],
    "fio libaio": ["--ioengine=libaio"],
}
BACKENDS = ("io_uring", "linux_aio", "threads")
SMALL = 65536
Measures = dict[str, Callable[[], float]]


def let_go(nbytes: int) -> None:
    """Uses memory and gives it back: what is new afterwards comes from there, for every row."""
    torch.ones(nbytes + nbytes // 8, dtype=torch.uint8)


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


class Bench:
    """The rows of each table: name -> one measurement in bytes a second."""

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
        self.tables: dict[str, Callable[[], Measures]] = {
            "write": self.writes,
            "read": self.reads,
            "random write": lambda: self.random(write=True),
            "random read": lambda: self.random(write=False),
        }

    def writes(self) -> Measures:
        rows = self.fio_rows("write", self.block) | self.our_rows(write=True)
        rows["ours, new file"] = self.ours_new_file
        rows |= self.peer_rows("write", self.block)
        for name, rival in RIVALS.items():
            rows[rival.saved_as] = lambda r=rival, n=name: self.rival_saves(r, n)
        return rows

    def reads(self) -> Measures:
        rows = self.fio_rows("read", self.block) | self.our_rows(write=False)
        rows["ours, pageable, idle"] = lambda: self.ours("auto", self.pageable, write=False)
        shape = (self.size,)
        rows["ours, aligned, fresh"] = lambda: self.ours_fresh(lambda: ds_aio.aligned_tensor(shape))
        rows["ours, pageable, fresh"] = lambda: self.ours_fresh(
            lambda: torch.empty(shape, dtype=torch.uint8)
        )
        rows |= self.peer_rows("read", self.block)
        for name, rival in RIVALS.items():
            rows[f"{rival.loaded_as}, fresh"] = lambda r=rival, n=name: self.rival_loads(r, n)
        return rows

    def random(self, *, write: bool) -> Measures:
        kind = "randwrite" if write else "randread"
        rows = self.fio_rows(kind, SMALL)
        for backend in BACKENDS:
            for name, blocks in (("fio's memory", self.depth), ("all memory", self.size // SMALL)):
                rows[f"ours {backend}, {name}"] = lambda b=backend, n=blocks: self.ours_random(
                    b, n, write=write
                )
        rows |= self.peer_rows(kind, SMALL)
        for name, rival in RIVALS.items():
            if not write or rival.writes_rows:
                label = f"{name}, " + ("mapped + sync" if write else "mapped, cold")
                rows[label] = lambda r=rival, n=name: self.rival_random(r, n, write=write)
        return rows

    def options(self, backend: str, block: int) -> ds_aio.Options:
        return ds_aio.Options(block_size=block, queue_depth=self.depth, backend=backend)

    def our_rows(self, *, write: bool) -> Measures:
        return {
            f"ours {backend}, {kind}": lambda b=backend, m=memory: self.ours(
                b, m.bitwise_not_(), write=write
            )
            for backend in BACKENDS
            for kind, memory in (("aligned", self.aligned), ("pageable", self.pageable))
        }

    def ours(self, backend: str, memory: torch.Tensor, *, write: bool) -> float:
        with ds_aio.open(self.path, "r+", options=self.options(backend, self.block)) as file:
            move = file.write if write else file.read_into
            return self.size / timed(lambda: move(memory).wait())

    def ours_fresh(self, memory: Callable[[], torch.Tensor]) -> float:
        let_go(self.size)
        return self.ours("auto", memory(), write=False)

    def ours_new_file(self) -> float:
        self.path.unlink()
        with ds_aio.open(self.path, "w", options=self.options("auto", self.block)) as file:
            return self.size / timed(lambda: file.write(self.aligned).wait())

    def order(self) -> list[int]:
        return torch.randperm(self.size // SMALL).tolist()

    def ours_random(self, backend: str, blocks: int, *, write: bool) -> float:
        rows = self.aligned[: self.size // SMALL * SMALL].view(-1, SMALL)
        rows[:blocks].bitwise_not_()
        pieces = [(rows[i % blocks], SMALL * place) for i, place in enumerate(self.order())]
        with ds_aio.open(self.path, "r+", options=self.options(backend, SMALL)) as file:
            move = file.write_many if write else file.read_into_many
            return rows.nbytes / timed(lambda: move(pieces).wait())

    def fio_rows(self, kind: str, block: int) -> Measures:
        return {engine: lambda e=engine: self.fio(e, kind, block) for engine in FIO_ENGINES}

    def fio(self, engine: str, kind: str, block: int) -> float:
        command = [
            "fio", "--name=t", f"--filename={self.path}", f"--size={self.size}",
            *FIO_ENGINES[engine], f"--bs={block}", f"--rw={kind}",
            f"--iodepth={self.depth}", "--direct=1", "--overwrite=1", "--randrepeat=0",
            "--output-format=terse", "--terse-version=3",
        ]  # fmt: skip
        run = subprocess.run(command, check=True, capture_output=True, text=True)
        return 1024.0 * float(run.stdout.split(";")[47 if "write" in kind else 6])

    def peer_rows(self, kind: str, block: int) -> Measures:
        if not self.peer:
            return {}
        sizes = (self.size, block, self.depth)

        def rate(pinned: bool) -> float:
            return self.size / peer_seconds(self.peer, kind, self.path, sizes, pinned=pinned)

        return {
            "peer aio_handle, pinned": lambda: rate(True),
            "peer aio_handle, pageable": lambda: rate(False),
        }

    def rival_saves(self, rival: Rival, name: str) -> float:
        path = self.path.with_suffix(f".{name}")
        path.unlink(missing_ok=True)

        def save() -> None:
            rival.saves(path, self.pageable)
            sync(path)

        return self.size / timed(save)

    def rival_file(self, rival: Rival, name: str) -> Path:
        """The rival's file with nothing of it in the page cache."""
        path = self.path.with_suffix(f".{name}")
        if not path.exists():
            rival.saves(path, self.pageable)
        drop_cache(path)
        return path

    def rival_loads(self, rival: Rival, name: str) -> float:
        path = self.rival_file(rival, name)
        let_go(self.size)
        return self.size / timed(lambda: rival.loads(path))

    def rival_random(self, rival: Rival, name: str, *, write: bool) -> float:
        path, order = self.rival_file(rival, name), self.order()
        rows = self.pageable[: self.size // SMALL * SMALL].view(-1, SMALL)

        def move() -> None:
            if write and rival.writes_rows:
                rival.writes_rows(path, rows, order)
                sync(path)
            else:
                rival.reads_rows(path, rows, order)

        return rows.nbytes / timed(move)


def run(rows: Measures, repeat: int, budget: float) -> dict[str, list[float]]:
    """Every row once, then all again from another one on: what drifts meets all alike."""
    seen: dict[str, list[float]] = {name: [] for name in rows}
    names = list(rows)
    began = time.monotonic()
    for turn in range(repeat):
        # Only whole rounds, and none that would end too late.
        if (time.monotonic() - began) * (turn + 1) > budget * max(turn, 1):
            break
        first = turn * len(names) // repeat
        for name in names[first:] + names[:first]:
            try:
                seen[name].append(rows[name]())
            except subprocess.CalledProcessError as error:
                if not name.startswith("peer"):
                    raise
                print(f"{turn} {name} died: {error.returncode}", file=sys.stderr, flush=True)
                continue
            print(f"{turn} {name}: {seen[name][-1] / 1e9:.2f} GB/s", file=sys.stderr, flush=True)
    return seen


def show(title: str, seen: dict[str, list[float]]) -> None:
    best = max(statistics.median(v) for name, v in seen.items() if name.startswith("fio"))
    print(f"\n{len(next(iter(seen.values())))} turns")
    print(f"\n| {title} | GB/s (median) | min - max | of fio's best |\n|---|---|---|---|")
    for name, values in seen.items():
        if not values:
            print(f"| {name} | died each time | | |")
            continue
        mid = statistics.median(values)
        span = f"{min(values) / 1e9:.2f} - {max(values) / 1e9:.2f}"
        print(f"| {name} | {mid / 1e9:.2f} | {span} | {mid / best:.2f} |", flush=True)


def main() -> None:
    titles = ["write", "read", "random write", "random read"]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", default=".")
    parser.add_argument("--size", type=int, default=1 << 30)
    parser.add_argument("--block", type=int, default=1 << 20)
    parser.add_argument("--depth", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--budget", type=float, default=1e9, help="seconds for each table")
    parser.add_argument("--peer-python", default="", help="interpreter that has the peer installed")
    parser.add_argument("--only", nargs="+", default=titles, choices=titles)
    args = parser.parse_args()
    if shutil.which("fio") is None:
        sys.exit("fio is the floor of this benchmark: install it")
    if args.peer_python:
        build_peer(args.peer_python)
    bench = Bench(args)
    try:
        bench.fio("fio libaio", "write", 1 << 20)
        for title in args.only:
            show(title, run(bench.tables[title](), args.repeat, args.budget))
    finally:
        for path in bench.path.parent.glob("ds_aio_bench*"):
            path.unlink()


if __name__ == "__main__":
    main()
