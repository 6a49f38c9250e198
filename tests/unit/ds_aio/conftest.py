"""Backends, file systems and bytes to move."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
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


def random_bytes(count: int, seed: int = 0) -> torch.Tensor:
    """The same random bytes for the same arguments."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
