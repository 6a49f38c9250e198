"""Instruction levels of this machine, forced one after the other."""

from __future__ import annotations

import pytest
import torch

from ds_kernels import backend

LEVELS = backend.available()


@pytest.fixture(params=LEVELS)
def level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Forces each way of stepping CPU memory that this machine has."""
    monkeypatch.setenv(backend.FORCE_VARIABLE, request.param)
    return request.param


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(20)
