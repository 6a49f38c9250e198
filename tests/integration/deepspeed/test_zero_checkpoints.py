"""`load_checkpoint` takes what any stage, offload and world size saved, and training goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import deepspeed
from ds_core.checkpoint import open_checkpoint
from support.ranks import run_ranks
from support.zero_models import Reference, batch

Layout = tuple[int, str]
"""Stage, and the device of what is offloaded."""

STEPS = 3
READERS: dict[int, list[Layout]] = {
    1: [(0, "none"), (1, "nvme"), (3, "cpu")],
    2: [(0, "none"), (1, "none"), (2, "cpu"), (3, "nvme")],
    4: [(0, "none"), (2, "nvme"), (3, "none")],
}
WRITERS: list[tuple[int, Layout]] = [
    (1, (0, "none")),
    (2, (0, "none")),
    (4, (1, "none")),
    (2, (1, "cpu")),
    (2, (2, "none")),
    (4, (2, "nvme")),
    (1, (3, "none")),
    (4, (3, "cpu")),
    (2, (3, "nvme")),
]


def start(layout: Layout, seed: int, folder: str) -> Any:
    stage, device = layout
    zero: dict[str, Any] = {"stage": stage, "stage3_param_persistence_threshold": 0}
    if device != "none":
        place = {"device": device, "nvme_path": folder}
        zero |= {"offload_optimizer": place, "sub_group_size": 100}
        zero |= {"offload_param": {**place, "max_in_cpu": 0}} if stage == 3 else {}
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
        "zero_optimization": zero,
    }
    torch.manual_seed(seed)
    return deepspeed.initialize(model=Reference(), config=config)[0]


def train(engine: Any, steps: range) -> list[float]:
    """Losses of batches that are the same on every rank, so that the mean is too."""
    losses = []
    for step in steps:
        loss = engine(*batch(step, 0))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def write(layout: Layout, folder: str) -> list[float]:
    engine = start(layout, 0, folder)
    train(engine, range(STEPS))
    engine.save_checkpoint(folder, tag="written")
    losses = train(engine, range(STEPS, STEPS + 2))
    engine.destroy()
    return losses


def read(layouts: list[Layout], folder: str) -> list[list[float]]:
    """For each layout: save what was loaded, then the losses that follow."""
    found = []
    for stage, device in layouts:
        engine = start((stage, device), 1, folder)
        engine.load_checkpoint(folder, tag="written")
        engine.save_checkpoint(folder, tag=f"{stage}-{device}")
        assert engine.global_steps == STEPS
        found.append(train(engine, range(STEPS, STEPS + 2)))
        engine.destroy()
    return found


def content(folder: Path, tag: str) -> dict[tuple[str, str], Tensor]:
    """Every tensor of a checkpoint, whole."""
    found = {}
    with open_checkpoint(folder, tag) as checkpoint:
        reader = checkpoint.reader
        for name in reader.names():
            for slot in reader.slots(name):
                value = torch.empty(reader.shape(name, slot), dtype=reader.dtype(name, slot))
                reader.read(name, slot, 0, value.view(-1))
                found[name, slot] = value
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "layout"), WRITERS)
def test_every_layout_resumes_every_other_bit_for_bit(ranks, layout, tmp_path):
    expected = run_ranks(write, ranks, layout, str(tmp_path))[0]
    written = content(tmp_path, "written")
    assert ("embed.weight", "exp_avg") in written
    for world, layouts in READERS.items():
        for losses in run_ranks(read, world, layouts, str(tmp_path))[0]:
            assert losses == pytest.approx(expected, rel=1e-5)
        for stage, device in layouts:
            again = content(tmp_path, f"{stage}-{device}")
            assert again.keys() == written.keys()
            for key, value in written.items():
                assert torch.equal(again[key], value), (key, stage, device, world)
