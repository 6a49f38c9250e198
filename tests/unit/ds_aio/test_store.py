"""The file store: private folders, leftovers of the dead, order, memory."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ds_aio import Faults, Options
from ds_aio.errors import BackendUnavailable, StoreError, TransferError, UnfitBuffer
from ds_aio.sections import AioSection
from ds_aio.store import FileStore, make_store

from .conftest import random_bytes

HOLD = """
import sys, torch
from ds_aio.store import FileStore
store = FileStore(sys.argv[1])
store.write("k", torch.full((100,), 5.0)).wait()
print(store.path, flush=True)
sys.stdin.readline()
out = torch.empty(100)
store.read("k", out).wait()
assert out.eq(5).all()
"""


def start_job(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    """Another process with a store below `folder`, which it holds until a line arrives."""
    job = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert job.stdout is not None
    return job, Path(job.stdout.readline().strip())


def test_a_killed_job_is_cleaned_up_and_a_live_one_is_not(tmp_path: Path) -> None:
    dead, dead_path = start_job(tmp_path)
    live, live_path = start_job(tmp_path)
    dead.send_signal(signal.SIGKILL)
    dead.communicate()
    assert dead_path.is_dir()
    with FileStore(tmp_path) as store:
        assert not dead_path.exists()
        assert live_path.is_dir()
        assert store.path not in (dead_path, live_path)
    live.communicate("\n")
    assert live.returncode == 0
    assert not live_path.exists()


def test_leaving_without_close_cleans_up(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.write("k", torch.zeros(10)).wait()
    path = store.path
    del store
    assert not path.exists()


def test_a_forked_child_does_not_delete_the_store_of_its_parent(tmp_path: Path) -> None:
    with FileStore(tmp_path) as store:
        store.write("k", torch.ones(10)).wait()
        pid = os.fork()
        if pid == 0:
            store._lease.release()
            os._exit(0)
        os.waitpid(pid, 0)
        out = torch.zeros(10)
        store.read("k", out).wait()
    assert out.eq(1).all()


@pytest.mark.parametrize("key", ["", ".", "..", "a/b", "x" * 300, "nul\0"])
def test_keys_that_are_no_file_names_are_refused(tmp_path: Path, key: str) -> None:
    with FileStore(tmp_path) as store, pytest.raises(StoreError, match="key"):
        store.write(key, torch.zeros(1))


def test_shapes_and_offsets_are_checked(tmp_path: Path) -> None:
    with FileStore(tmp_path) as store:
        with pytest.raises(UnfitBuffer, match="flat"):
            store.write("k", torch.zeros(2, 2))
        with pytest.raises(UnfitBuffer, match="no file has 8 bytes at offset -4"):
            store.read("k", torch.zeros(2), -4)
    with pytest.raises(StoreError, match="closed"):
        store.write("k", torch.zeros(2))


def test_a_prefetched_range_comes_from_memory(tmp_path: Path) -> None:
    with FileStore(tmp_path, prefetch_bytes=5000) as store:
        data = random_bytes(9000)
        store.write("k", data).wait()
        assert store.prefetch("k", 4000, 7)
        assert not store.prefetch("k", 4000, 7)
        assert not store.prefetch("k", 4000, 0)
        out = torch.zeros(4000, dtype=torch.uint8)
        pending = store.read("k", out, 7)
        pending.wait()
        pending.wait()
        assert torch.equal(out, data[7:4007])
        assert store.prefetch("k", 5000, 0)


def test_a_write_makes_what_was_prefetched_stale(tmp_path: Path) -> None:
    with FileStore(tmp_path) as store:
        store.write("k", torch.zeros(100)).wait()
        store.prefetch("k", 400)
        store.write("k", torch.ones(100))
        out = torch.empty(100)
        store.read("k", out).wait()
    assert out.eq(1).all()


def test_more_keys_than_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ds_aio.store.MOST_OPEN_FILES", 4)
    with FileStore(tmp_path) as store:
        before = len(os.listdir("/proc/self/fd"))
        out = [torch.empty(10) for _ in range(40)]
        for i in range(40):
            store.write(f"k{i}", torch.full((10,), float(i))).wait()
        for i in range(40):  # one at a time: what is under way keeps its file open
            store.read(f"k{i}", out[i]).wait()
        assert len(os.listdir("/proc/self/fd")) <= before + 10
    assert all(tensor.eq(i).all() for i, tensor in enumerate(out))


def test_the_section_makes_a_store(tmp_path: Path) -> None:
    section = AioSection(queue_depth=4, single_submit="true", overlap_events="false")
    assert (section.single_submit, section.overlap_events) == (True, False)
    for options in (section, {"block_size": 65536}, None):
        with make_store(tmp_path, options) as store:
            store.write("k", torch.ones(3)).wait()


def test_gpudirect_on_demand_fails_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match="CUDA"):
        make_store(tmp_path, {"use_gds": "true"})


@pytest.mark.parametrize(("nbytes", "offset"), [(-5, 0), (4, -8), (4, 1 << 63)])
def test_a_range_that_no_file_has_is_refused(tmp_path: Path, nbytes: int, offset: int) -> None:
    with FileStore(tmp_path) as store:
        store.write("k", torch.ones(10)).wait()
        with pytest.raises(UnfitBuffer, match=f"no file has {nbytes} bytes at offset {offset}"):
            store.prefetch("k", nbytes, offset)


def test_what_was_not_written_cannot_be_read_until_it_is(tmp_path: Path) -> None:
    faults = Faults(fail_errno=errno.EIO, fail_offset=5000, fail_times=1)
    with FileStore(tmp_path, options=Options(faults=faults)) as store:
        out = torch.ones(2000)
        store.write("k", torch.zeros(2000))  # nobody waits for it
        for _ in range(2):
            read = store.read("k", out)
            with pytest.raises(TransferError, match=r"write of 8000 bytes.*k\.bin.*offset"):
                read.wait()
        assert not store.prefetch("k", 8000)
        store.write("k", torch.zeros(500), 4800).wait()  # a part of it
        with pytest.raises(TransferError):
            store.read("k", out).wait()
        store.write("k", torch.full((2000,), 4.0)).wait()
        store.read("k", out).wait()
        assert out.eq(4).all()
