"""What holds for every test: a process group that a test made does not outlive it."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def _no_process_group_left_behind():
    yield
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
