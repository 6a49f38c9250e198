"""Saving and loading a state dict: ours, safetensors, torch.save, and what the device can do.

Saves count until the file is durable. Loads begin with none of the file in the page cache and count
until every page of every tensor is in memory. fio moves as many bytes with direct I/O, 1 MiB x 32,
through 32 blocks of memory that it has touched beforehand; loads fill memory that is new. All take
turns, in another order each round. Before each measurement but fio's as much memory as the state
takes is used and given back: without that, who comes after a load gets memory sooner than who comes
after fio, for the host of a virtual machine takes back what is free for some seconds. With `--rest`
all wait until it has.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import safetensors.torch
import torch

import ds_aio

State = dict[str, torch.Tensor]
PEAK_CODE = """
import sys
sys.path.insert(0, sys.argv[4])
from tensor_files import make_state, touch, WAYS
peak = lambda: int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024
save, load = WAYS[sys.argv[1]]
state = make_state(int(sys.argv[3]))
before = peak()
save(state, sys.argv[2])
saved = peak()
state = None
touch(state := load(sys.argv[2]))
print("PEAK", saved - before, max(0.0, peak() - max(before, saved)))
"""


def make_state(nbytes: int) -> State:
    """A transformer's parameters: a few shapes of weights, and many small vectors."""
    width, state, used, layer = 1024, {}, 0, 0
    while used < nbytes:
        shapes = {"qkv": (3 * width, width), "out": (width, width), "up": (4 * width, width)}
        shapes |= {"down": (width, 4 * width), "norm": (width,), "bias": (4 * width,)}
        for name, shape in shapes.items():
            tensor = torch.empty(shape).uniform_()
            state[f"layers.{layer}.{name}"] = tensor
            used += tensor.nbytes
        layer += 1
    return state


def durable(path: str | Path) -> None:
    for name, flags in ((path, os.O_RDONLY), (Path(path).parent, os.O_RDONLY | os.O_DIRECTORY)):
        fd = os.open(name, flags)
        os.fsync(fd)
        os.close(fd)


def torch_save(state: State, path: str) -> None:
    torch.save(state, path)
    durable(path)


def safetensors_save(state: State, path: str) -> None:
    safetensors.torch.save_file(state, path)
    durable(path)


def ours_save(state: State, path: str) -> None:
    ds_aio.save(path, state)


WAYS: dict[str, tuple[Callable[[State, str], None], Callable[[str], State]]] = {
    "ours": (ours_save, lambda path: ds_aio.load(path)),
    "safetensors": (safetensors_save, lambda path: safetensors.torch.load_file(path)),
    "torch.save": (torch_save, lambda path: torch.load(path)),
}


FIO = {
    "fio io_uring": ["--ioengine=io_uring"],
    "fio io_uring, registered": ["--ioengine=io_uring", "--fixedbufs", "--registerfiles"],
    "fio libaio": ["--ioengine=libaio"],
}


def touch(state: State) -> None:
    for tensor in state.values():
        tensor.view(torch.uint8).reshape(-1)[::4096].sum()


def forget(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def fio(path: Path, nbytes: int, kind: str, engine: list[str]) -> float:
    command = [
        "fio", "--name=t", f"--filename={path}", f"--size={nbytes}", *engine,
        "--bs=1M", "--iodepth=32", f"--rw={kind}", "--direct=1", "--end_fsync=1",
        "--output-format=terse", "--terse-version=3",
    ]  # fmt: skip
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split(";")
    return 1024.0 * float(out[47 if kind == "write" else 6])


def measure(
    folder: Path, state: State, repeat: int, budget: float, rest: float
) -> dict[str, dict[str, list[float]]]:
    nbytes = sum(tensor.nbytes for tensor in state.values())
    names = [*FIO, *WAYS]
    seen: dict[str, dict[str, list[float]]] = {
        title: {name: [] for name in names} for title in ("durable save", "cold load")
    }
    began = time.monotonic()
    for turn in range(repeat):
        # Only whole rounds, and none that would end too late.
        if (time.monotonic() - began) * (turn + 1) > budget * max(turn, 1):
            break
        for name in random.Random(turn).sample(names, len(names)):
            path = folder / f"tensor_files_bench.{name.split()[-1]}"
            path.unlink(missing_ok=True)
            if name in FIO:
                rates = fio_rates(path, nbytes, name)
            else:
                rates = way_rates(path, state, name, rest)
            for title, rate in zip(seen, rates, strict=True):
                seen[title][name].append(rate)
                print(f"{turn} {title}, {name}: {rate / 1e9:.2f}", file=sys.stderr, flush=True)
            path.unlink()
            os.sync()  # or the next row pays for giving the blocks of this one back
    return seen


def fio_rates(path: Path, nbytes: int, name: str) -> tuple[float, float]:
    return fio(path, nbytes, "write", FIO[name]), fio(path, nbytes, "read", FIO[name])


def prepare_memory(nbytes: int, rest: float) -> None:
    """What is new afterwards was just let go, or after some seconds of rest free for long."""
    if rest:
        time.sleep(rest)
    else:
        torch.ones(nbytes + nbytes // 8, dtype=torch.uint8)


def way_rates(path: Path, state: State, name: str, rest: float) -> tuple[float, float]:
    nbytes = sum(tensor.nbytes for tensor in state.values())
    save, load = WAYS[name]
    prepare_memory(nbytes, rest)
    begin = time.perf_counter()
    save(state, str(path))
    saving = time.perf_counter() - begin
    forget(path)
    prepare_memory(nbytes, rest)
    begin = time.perf_counter()
    touch(load(str(path)))
    return nbytes / saving, nbytes / (time.perf_counter() - begin)


def show(title: str, seen: dict[str, list[float]]) -> None:
    best = max(statistics.median(v) for name, v in seen.items() if name.startswith("fio"))
    print(f"\n{len(next(iter(seen.values())))} turns")
    print(f"\n| {title} | GB/s (median) | min - max | of fio's best |\n|---|---|---|---|")
    for name, values in seen.items():
        mid = statistics.median(values)
        span = f"{min(values) / 1e9:.2f} - {max(values) / 1e9:.2f}"
        print(f"| {name} | {mid / 1e9:.2f} | {span} | {mid / best:.2f} |", flush=True)


def show_peaks(folder: Path, nbytes: int) -> None:
    print("\n| extra memory, MiB | save | load |\n|---|---|---|")
    for name in WAYS:
        path = folder / "tensor_files_bench.peak"
        code = [sys.executable, "-c", PEAK_CODE, name, path, str(nbytes), Path(__file__).parent]
        out = subprocess.run(code, check=True, capture_output=True, text=True).stdout
        save, load = map(float, out.split("PEAK")[1].split())
        print(f"| {name} | {save:.0f} | {load:.0f} |", flush=True)
        path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--size", type=int, default=2 << 30)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--budget", type=float, default=1e9, help="seconds for all rounds")
    parser.add_argument("--rest", type=float, default=0, help="seconds before each but fio's")
    parser.add_argument("--only", nargs="+", default=["rates", "memory"])
    args = parser.parse_args()
    if shutil.which("fio") is None:
        sys.exit("fio is the floor of this benchmark: install it")
    try:
        if "rates" in args.only:
            state = make_state(args.size)
            rates = measure(args.folder, state, args.repeat, args.budget, args.rest)
            for title, seen in rates.items():
                show(title, seen)
        if "memory" in args.only:
            show_peaks(args.folder, args.size)
    finally:
        for path in args.folder.glob("tensor_files_bench*"):
            path.unlink()


if __name__ == "__main__":
    main()
