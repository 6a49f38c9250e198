"""Backends, file systems and bytes to move."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import ds_aio

BACKENDS = [name for name, reason in ds_aio.availability().items() if not reason]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend this machine has."""
    return str(request.param)


@pytest.fixture(params=["disk", "memory"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder on an ordinary file system, and one in memory."""
    if request.param == "disk":
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


@contextlib.contextmanager
def mounted(kind: str, options: str, source: str, target: Path) -> Iterator[bool]:
    """A mount that ends with the block; False where mounting is forbidden."""
    command = ["mount", "-t", kind, "-o", options, source, str(target)]
    done = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield done
    finally:
        if done:
            subprocess.run(["umount", "--lazy", str(target)], check=True)


@pytest.fixture(params=["tmpfs", "ext4"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of few MiB, or where mounting is forbidden files of at most 4 MiB."""
    target = tmp_path / "disk"
    target.mkdir()
    options, source = "size=4m", "tmpfs"
    if request.param == "ext4":
        options, source = "loop", str(tmp_path / "image")
        Path(source).write_bytes(bytes(8 << 20))
        subprocess.run(["mkfs.ext4", "-q", source], capture_output=True, check=False)
    with mounted(request.param, options, source, target) as done:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if not done:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, limits[1]))
        yield target
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def random_bytes(count: int, seed: int = 0) -> torch.Tensor:
    """The same random bytes for the same arguments."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)


def eventually(holds: Callable[[], bool], patience: float = 10.0) -> bool:
    """Whether `holds` comes true: the kernel takes some things away a little after their end."""
    until = time.monotonic() + patience
    while not holds():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True
