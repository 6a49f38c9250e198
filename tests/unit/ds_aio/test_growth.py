"""Files that many requests make longer, and more requests than files may be open."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from ds_aio import aio_handle

from .conftest import mounted


@pytest.fixture(params=["ext4", "ext2"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """An ordinary folder, and where mounting is allowed one that cannot reserve room."""
    if request.param == "ext4":
        yield tmp_path
        return
    target, image = tmp_path / "disk", tmp_path / "image"
    target.mkdir()
    image.write_bytes(bytes(32 << 20))
    subprocess.run(["mkfs.ext2", "-q", str(image)], capture_output=True, check=False)
    with mounted("ext2", "loop", str(image), target):
        yield target


PARTS, LENGTH, HANDLES = 48, 128 << 10, 3


def test_handles_that_make_one_file_longer_at_once_do_not_cut_each_other_off(
    disk: Path, backend: str
) -> None:
    order = torch.randperm(PARTS, generator=torch.Generator().manual_seed(0)).tolist()

    def write_some(first: int) -> None:
        handle = aio_handle(block_size=1 << 16, intra_op_parallelism=2, backend=backend)
        for part in order[first::HANDLES]:
            data = torch.full((LENGTH,), part, dtype=torch.uint8)
            handle.async_pwrite(data, disk / "file", part * LENGTH)
        handle.wait()

    for _ in range(20):
        (disk / "file").unlink(missing_ok=True)
        with ThreadPoolExecutor(HANDLES) as pool:
            list(pool.map(write_some, range(HANDLES)))
        found = np.fromfile(disk / "file", dtype=np.uint8)
        assert np.array_equal(found, np.repeat(np.arange(PARTS, dtype=np.uint8), LENGTH))


@pytest.fixture
def few_files() -> Iterator[None]:
    """At most 100 more open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 100, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_requests_that_nobody_has_waited_for_are_as_many_as_one_likes(
    tmp_path: Path, backend: str, few_files: None
) -> None:
    handle = aio_handle(backend=backend)
    parts = torch.arange(1000 * 30).reshape(1000, 30)
    for number, part in enumerate(parts):
        handle.async_pwrite(part, tmp_path / "file", number * part.nbytes)
    assert handle.wait() == 1000
    assert np.array_equal(np.fromfile(tmp_path / "file", dtype=np.int64), parts.flatten().numpy())


def test_a_handle_let_go_of_finishes_what_it_has_begun(tmp_path: Path, backend: str) -> None:
    handle = aio_handle(block_size=1 << 16, backend=backend)
    handle.async_pwrite(torch.ones(2_000_000), tmp_path / "file")
    del handle
    found = np.fromfile(tmp_path / "file", dtype=np.float32)
    assert found.size == 2_000_000
    assert (found == 1).all()
