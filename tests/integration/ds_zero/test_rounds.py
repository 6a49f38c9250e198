"""Engines that come and go in one process leave nothing behind."""

from __future__ import annotations

import gc
import os

import pytest
import torch
from torch import nn

from ds_zero.sections import ZeroSection
from support.ranks import run_ranks
from support.zero_models import engine_of

WIDTH = 64


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))

    def forward(self, x):
        return self.layers(x).square().mean()


def held() -> tuple[int, int, int]:
    """Bytes of tensors that something refers to, open files and threads of this process."""
    gc.collect()
    tensors = [found for found in gc.get_objects() if type(found) in (torch.Tensor, nn.Parameter)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    entries = [len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task")]
    return sum(storages.values()), *entries


def come_and_go(stage: int, *, same_module: bool) -> list[tuple[int, int, int]]:
    """What is held after each of three engines."""
    module, found = Stack(), []
    section = ZeroSection(stage=stage, stage3_param_persistence_threshold=0)
    for _ in range(3):
        engine = engine_of(section, module if same_module else Stack())
        for _ in range(2):
            engine.backward(engine(torch.ones(2, WIDTH)))
            engine.step()
        engine.destroy()
        del engine
        found.append(held())
    return found


@pytest.mark.parametrize("same_module", [True, False], ids=["one module", "new modules"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_an_engine_that_is_gone_holds_no_memory_files_or_threads(stage, same_module):
    for first, *later in run_ranks(come_and_go, 2, stage, same_module=same_module):
        for now in later:
            assert all(count <= before for count, before in zip(now, first, strict=True))
