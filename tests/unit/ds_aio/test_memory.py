"""Locked memory comes back, limits are told, and nothing piles up over many rounds."""

from __future__ import annotations

import gc
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ds_aio
from ds_aio import Options

from .conftest import eventually


def kib(name: str) -> int:
    """A line of this process's status: `VmLck` (locked) or `VmRSS` (in memory)."""
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0])


def count(kind: str) -> int:
    """How many threads (`task`) or descriptors (`fd`) this process has."""
    return len(os.listdir(f"/proc/self/{kind}"))


def held() -> dict[str, int]:
    """What an engine may hold: descriptors, threads and KiB of locked memory."""
    return {"fd": count("fd"), "task": count("task"), "VmLck": kib("VmLck")}


def nothing_more_than(before: dict[str, int]) -> bool:
    """Whether no more is held than `before`, once the kernel has taken threads and rings away."""
    gc.collect()
    return eventually(lambda: all(value <= before[name] for name, value in held().items()))


@pytest.mark.parametrize("how", ["free", "drop", "raise"])
def test_locked_tensors_are_given_back(tmp_path: Path, how: str) -> None:
    handle = ds_aio.aio_handle()
    before, rss = held(), kib("VmRSS")

    def once() -> None:
        tensor = handle.new_cpu_locked_tensor(4 << 20, torch.empty(0))
        tensor[:1000].fill_(1)
        if how == "raise":
            raise KeyError
        handle.sync_pwrite(tensor[:1000], str(tmp_path / "f"))
        if how == "free":
            assert handle.free_cpu_locked_tensor(tensor)
            assert tensor.numel() == 0

    for _ in range(200):
        try:
            once()
        except KeyError:
            continue
    assert nothing_more_than(before)
    assert kib("VmRSS") < rss + (64 << 10)


def test_a_view_keeps_the_memory_alive() -> None:
    tensor = ds_aio.aligned_tensor((1 << 20,), torch.float32).fill_(3)
    part = tensor[10:20]
    del tensor
    gc.collect()
    assert part.eq(3).all()


@pytest.mark.parametrize("phase", [0, 1, 64, 4095, 5000])
def test_memory_begins_where_it_was_asked_to(phase: int) -> None:
    for nbytes in (1, 4096, 5_000_000):
        tensor = ds_aio.aligned_tensor((nbytes,), phase=phase)
        assert tensor.data_ptr() % 4096 == phase % 4096
        tensor.fill_(1)


def test_over_the_lock_limit_memory_works_unlocked_and_the_report_says_so(tmp_path: Path) -> None:
    code = (
        "import os, resource, sys, torch, ds_aio\n"
        "resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))\n"
        "if os.getuid() == 0: os.setresuid(65534, 65534, 65534)\n"
        "h = ds_aio.aio_handle()\n"
        "t = h.new_cpu_locked_tensor(1 << 20, torch.empty(0)).fill_(2)\n"
        "assert h.is_pinned(t) and 'RLIMIT_MEMLOCK' in str(h.report())\n"
        "h.sync_pwrite(t, sys.argv[1])\n"
        "o = torch.zeros_like(t); h.sync_pread(o, sys.argv[1]); assert torch.equal(o, t)\n"
    )
    folder = Path("/dev/shm") / f"ds_aio_test_{os.getpid()}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    try:
        subprocess.run([sys.executable, "-c", code, folder / "f"], check=True, timeout=60)
    finally:
        (folder / "f").unlink(missing_ok=True)
        folder.rmdir()


def test_nothing_leaks_over_300_rounds(backend: str, tmp_path: Path) -> None:
    handle = ds_aio.aio_handle(block_size=65536, queue_depth=4, backend=backend)
    data = torch.ones(100_000, dtype=torch.uint8)
    out = torch.zeros(200_000, dtype=torch.uint8)
    path = str(tmp_path / "f")

    def round_of_work() -> None:
        handle.async_pwrite(data, path)
        handle.wait()
        handle.async_pread(out[:100_000], path)
        handle.wait()
        for call in (handle.sync_pread, handle.async_pread):
            try:
                call(out, path)
                handle.wait()
            except ds_aio.ShortFile:
                continue

    for _ in range(20):
        round_of_work()
    gc.collect()
    before, rss = held(), kib("VmRSS")
    for _ in range(300):
        round_of_work()
    assert nothing_more_than(before)
    assert kib("VmRSS") < rss + (16 << 10)


def test_300_engines_that_meet_errors_leave_nothing(backend: str, tmp_path: Path) -> None:
    options = Options(
        backend=backend, queue_depth=2, faults=ds_aio.Faults(fail_errno=5, fail_offset=5000)
    )
    data = torch.ones(100_000, dtype=torch.uint8)

    def round_of_work() -> None:
        locked = ds_aio.aligned_tensor((1 << 20,), lock=True)
        file = ds_aio.open(tmp_path / "f", "w", options=options)
        file.write(locked[:4096])
        file.write(data, 1)
        with pytest.raises(ds_aio.TransferError):
            file.close()

    for _ in range(10):
        round_of_work()
    gc.collect()
    before, rss = held(), kib("VmRSS")
    for _ in range(300):
        round_of_work()
    assert nothing_more_than(before)
    assert kib("VmRSS") < rss + (16 << 10)


def test_engines_leave_no_threads_or_descriptors(backend: str, tmp_path: Path) -> None:
    for round_number in range(12):
        with ds_aio.open(tmp_path / "f", "w", options=Options(backend=backend)) as file:
            file.write(torch.zeros(5000))
        if round_number == 2:
            before = held()
    assert nothing_more_than(before)


def test_a_dropped_transfer_still_owns_its_memory(backend: str, tmp_path: Path) -> None:
    for _ in range(20):
        with ds_aio.open(tmp_path / "f", "w", options=Options(backend=backend)) as file:
            file.write(torch.full((1_000_000,), 7, dtype=torch.uint8))
            torch.full((1_000_000,), 9, dtype=torch.uint8)
        assert set((tmp_path / "f").read_bytes()) == {7}


def test_the_soft_limit_is_left_alone() -> None:
    before = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    ds_aio.aligned_tensor((1 << 20,), lock=True)
    assert resource.getrlimit(resource.RLIMIT_MEMLOCK) == before
