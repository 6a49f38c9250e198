"""What goes wrong is told with path, offset and bytes, and leaves the handle usable."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import ds_aio
from ds_aio import Faults, Options, TransferError

from .conftest import BACKENDS, eventually, random_bytes


@pytest.fixture
def handle(backend: str) -> Iterator[ds_aio.AioHandle]:
    """A handle that must still work after the test."""
    handle = ds_aio.aio_handle(backend=backend)
    yield handle
    assert handle.wait() == 0


def test_a_short_file_is_told_apart_and_the_buffer_is_left_alone(
    handle: ds_aio.AioHandle, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(b"a" * 60)
    out = torch.zeros(100, dtype=torch.uint8)
    with pytest.raises(ds_aio.ShortFile) as caught:
        handle.sync_pread(out, str(tmp_path / "f"))
    assert (caught.value.offset, caught.value.wanted, caught.value.done) == (60, 100, 0)
    assert str(tmp_path / "f") in str(caught.value)
    assert not out.any()
    handle.sync_pread(out[:60], str(tmp_path / "f"))
    assert out[:60].eq(ord("a")).all()


@pytest.mark.parametrize(
    ("name", "kind", "builtin"),
    [
        ("missing", ds_aio.MissingFile, FileNotFoundError),
        ("folder", ds_aio.IsFolder, IsADirectoryError),
        ("pipe", TransferError, OSError),
    ],
)
def test_what_is_no_file_is_refused(
    handle: ds_aio.AioHandle, tmp_path: Path, name: str, kind: type, builtin: type
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for call in (handle.sync_pread, handle.async_pread):
        with pytest.raises(kind) as caught:
            call(torch.zeros(8), str(tmp_path / name))
        assert isinstance(caught.value, builtin)


def test_a_missing_folder_is_named(handle: ds_aio.AioHandle, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        handle.sync_pwrite(torch.zeros(8), str(tmp_path / "nowhere" / "f"))


def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"secret")
    (tmp_path / "f").chmod(0)
    tmp_path.chmod(0o755)
    for parent in list(tmp_path.parents)[:3]:
        parent.chmod(0o755)
    code = (
        "import os, sys, torch, ds_aio\n"
        "if os.getuid() == 0: os.setresuid(65534, 65534, 65534)\n"
        "try: ds_aio.aio_handle().sync_pread(torch.zeros(1), sys.argv[1])\n"
        "except ds_aio.AccessDenied as error: assert isinstance(error, PermissionError)\n"
        "else: raise SystemExit('read what it may not')\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "f"], check=True, timeout=60)


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        (torch.zeros(8, 8).t(), "not contiguous"),
        (torch.zeros(8, 8)[:, :4], "not contiguous"),
        (np.zeros((8, 8))[:, ::2], "not C-contiguous"),
        (b"read-only", "read-only"),
        (np.broadcast_to(np.zeros(1), (8,)), "C-contiguous|read-only"),
        (torch.zeros(3, dtype=torch.complex64).conj(), "conj"),
        (torch.zeros(3, device="meta"), "meta"),
        (object(), "no memory"),
    ],
)
def test_unfit_buffers_are_refused(
    handle: ds_aio.AioHandle, tmp_path: Path, buffer: object, message: str
) -> None:
    (tmp_path / "f").write_bytes(bytes(4096))
    with pytest.raises(ds_aio.UnfitBuffer, match=message):
        handle.sync_pread(buffer, str(tmp_path / "f"))


def test_freed_tensors_are_refused(handle: ds_aio.AioHandle, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(4096))
    locked = handle.new_cpu_locked_tensor(8, torch.empty(0))
    assert handle.free_cpu_locked_tensor(locked)
    shrunk = torch.zeros(8)
    shrunk.untyped_storage().resize_(0)
    for tensor in (locked, shrunk):
        with pytest.raises(ds_aio.UnfitBuffer, match="freed"):
            handle.sync_pread(tensor, str(tmp_path / "f"))


def test_waiting_without_work_returns_zero(handle: ds_aio.AioHandle, tmp_path: Path) -> None:
    assert handle.wait() == 0
    handle.async_pwrite(torch.zeros(8), str(tmp_path / "f"))
    handle.async_pwrite(torch.zeros(8), str(tmp_path / "g"))
    assert handle.wait() == 2
    assert handle.wait() == 0


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("write", [False, True])
def test_device_errors_reach_python(backend: str, tmp_path: Path, number: int, write: bool) -> None:
    (tmp_path / "f").write_bytes(bytes(1 << 20))
    faults = Faults(fail_errno=number, fail_offset=300_000)
    handle = ds_aio.aio_handle(block_size=65536, queue_depth=4, backend=backend, faults=faults)
    data = torch.zeros(1 << 20, dtype=torch.uint8)
    (handle.async_pwrite if write else handle.async_pread)(data, str(tmp_path / "f"))
    with pytest.raises(TransferError) as caught:
        handle.wait()
    error = caught.value
    assert error.errno == number
    assert error.offset <= 300_000 < error.offset + (1 << 20)
    assert error.wanted == 1 << 20
    assert error.done < 1 << 20
    assert handle.sync_pread(data[:65536], str(tmp_path / "f")) == 1


def test_a_large_read_that_fails_at_once_ends(backend: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(40 << 20))
    faults = Faults(fail_errno=errno.EIO, fail_offset=0)
    with ds_aio.open(tmp_path / "f", options=Options(backend=backend, faults=faults)) as file:
        transfer = file.read_into(torch.empty(40 << 20, dtype=torch.uint8))
        with pytest.raises(TransferError):
            transfer.wait()


def test_the_first_error_is_raised_after_all_work_has_ended(backend: str, tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"12")
    handle = ds_aio.aio_handle(backend=backend)
    out = torch.zeros(5_000_000, dtype=torch.uint8)
    data = random_bytes(5_000_000)
    handle.async_pread(torch.zeros(3, dtype=torch.uint8), str(tmp_path / "short"))
    handle.async_pwrite(data, str(tmp_path / "good"))
    with pytest.raises(ds_aio.ShortFile):
        handle.wait()
    handle.sync_pread(out, str(tmp_path / "good"))
    assert torch.equal(out, data)


def test_a_full_disk_is_an_error_not_a_crash(backend: str, small_disk: Path) -> None:
    handle = ds_aio.aio_handle(backend=backend)
    with pytest.raises(TransferError) as caught:
        handle.sync_pwrite(torch.zeros(12 << 20, dtype=torch.uint8), str(small_disk / "f"))
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
    (small_disk / "f").unlink()
    # io_uring may hold the file for a moment after it has answered.
    assert eventually(lambda: os.statvfs(small_disk).f_bavail > 0)
    assert handle.sync_pwrite(torch.zeros(1000, dtype=torch.uint8), str(small_disk / "g")) == 1


def test_a_state_that_does_not_fit_leaves_nothing_behind(small_disk: Path) -> None:
    ds_aio.save(small_disk / "m", {"a": torch.ones(3)})
    before = sorted(small_disk.iterdir())
    with pytest.raises(TransferError) as caught:
        ds_aio.save(small_disk / "m", {"a": torch.ones(3 << 20)})
    assert caught.value.errno in (errno.ENOSPC, errno.EFBIG)
    assert sorted(small_disk.iterdir()) == before
    assert ds_aio.load(small_disk / "m")["a"].eq(1).all()


def test_the_file_size_limit_is_named(backend: str, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        handle = ds_aio.aio_handle(backend=backend)
        with pytest.raises(TransferError, match="RLIMIT_FSIZE") as caught:
            handle.sync_pwrite(torch.zeros(2 << 20, dtype=torch.uint8), str(tmp_path / "f"))
        assert caught.value.errno == errno.EFBIG
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_signals_during_transfers_do_no_harm(backend: str, tmp_path: Path) -> None:
    seen: list[int] = []
    data = random_bytes(60_000_000)
    out = torch.zeros_like(data)
    old = signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        handle = ds_aio.aio_handle(backend=backend, intra_op_parallelism=2)
        handle.async_pwrite(data, str(tmp_path / "f"))
        assert handle.wait() == 1
        handle.async_pread(out, str(tmp_path / "f"))
        assert handle.wait() == 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert seen
    assert torch.equal(out, data)


def test_signals_cancel_no_transfer_of_a_new_engine(backend: str, tmp_path: Path) -> None:
    # The kernel begins a helper for the first transfer that would block, and drops that transfer
    # if its thread has a signal waiting just then.
    data = random_bytes(3_001_792)
    old = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.00005, 0.00005)
    try:
        for _ in range(60):
            handle = ds_aio.aio_handle(backend=backend, intra_op_parallelism=2)
            handle.async_pwrite(data, str(tmp_path / "f"))
            assert handle.wait() == 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert (tmp_path / "f").read_bytes() == data.numpy().tobytes()


@pytest.mark.parametrize("native", [name for name in BACKENDS if name != "python"])
def test_threads_of_an_engine_block_signals(native: str, tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/task"))
    options = Options(backend=native, intra_op_parallelism=2)  # type: ignore[arg-type]
    with ds_aio.Engine(options) as engine:
        with ds_aio.File(tmp_path / "f", "w", engine, owned=False) as file:
            file.write(torch.zeros(20 << 20, dtype=torch.uint8)).wait()
        own = set(os.listdir("/proc/self/task")) - before
        assert len(own) >= 2
        for thread in own:
            status = Path(f"/proc/self/task/{thread}/status").read_text()
            if "iou-" in status:  # the kernel's own
                continue
            blocked = int(status.split("SigBlk:")[1].split()[0], 16)
            assert blocked >> (signal.SIGALRM - 1) & 1
            assert blocked >> (signal.SIGINT - 1) & 1
            assert not blocked >> (signal.SIGSEGV - 1) & 1


def test_a_refused_open_leaves_a_note_once(tmp_path: Path) -> None:
    handle = ds_aio.aio_handle(faults=Faults(refuse_transfer=True))
    for name in ("f", "f", "f"):
        handle.sync_pwrite(random_bytes(100_000), str(tmp_path / name))
    assert len([n for n in handle.report().notes if "refused" in n]) == 1


def test_a_failed_write_takes_back_the_length_it_added(backend: str, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 100)
    options = Options(backend=backend, faults=Faults(fail_errno=errno.EIO, fail_offset=5000))
    file = ds_aio.open(tmp_path / "f", "r+", options=options)
    file.write(torch.zeros(1 << 20, dtype=torch.uint8), 100)
    with pytest.raises(TransferError):
        file.close()
    assert file.closed
    assert (tmp_path / "f").stat().st_size < 1 << 20


@pytest.mark.parametrize("busy", [False, True])
def test_a_forked_child_lets_go_of_an_engine_at_once(tmp_path: Path, busy: bool) -> None:
    code = (
        "import gc, os, torch, ds_aio, sys\n"
        "data = torch.empty(64 << 20, dtype=torch.uint8).fill_(1)\n"
        "f = ds_aio.open(sys.argv[1], 'w'); t = f.write(data)\n"
        "if sys.argv[2] == 'False': t.wait()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    f._engine.close(); del f, t; gc.collect(); os._exit(0)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
        "f.close(); assert os.path.getsize(sys.argv[1]) == 64 << 20\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "f"), str(busy)]
    subprocess.run(command, check=True, timeout=60)


def test_an_engine_is_not_used_across_a_fork(tmp_path: Path) -> None:
    code = (
        "import os, torch, ds_aio, sys\n"
        "h = ds_aio.aio_handle(); h.sync_pwrite(torch.zeros(4), sys.argv[1])\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try: h.sync_pread(torch.zeros(4), sys.argv[1])\n"
        "    except RuntimeError as e: os._exit(0 if 'fork' in str(e) else 3)\n"
        "    os._exit(4)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0\n"
        "assert h.sync_pread(torch.zeros(4), sys.argv[1]) == 1\n"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path / "f"], check=True, timeout=60)
