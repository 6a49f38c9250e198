"""Under a memory limit that the optimizer's state exceeds, NVMe offload trains and nothing else."""

from __future__ import annotations

import ctypes
import importlib
import resource
import sys
from pathlib import Path

import pytest
import torch

import deepspeed
from support.ranks import RankFailure, run_ranks

M_MMAP_THRESHOLD = -3
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "gpt"
LAYERS, WIDTH, STEPS = 8, 512, 3
PARAMETERS = 12 * LAYERS * WIDTH**2
ROOM = 16 * PARAMETERS
"""Bytes: 2 for a weight, 4 for a gradient, stacks of threads, but not 12 for the state too."""


def data_bytes() -> int:
    """Private writable memory of this process: what RLIMIT_DATA (`ulimit -d`) limits."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmData")))


def train(device: str, room: int | None, folder: str) -> list[float]:
    """Losses of a GPT on the text of the example, within `room` more bytes than at the start."""
    sys.path.insert(0, str(EXAMPLE))
    shapes, texts = importlib.import_module("model"), importlib.import_module("text")
    text, _ = texts.read_text(None)
    offload = {"device": device, "nvme_path": folder}
    zero = {"stage": 2, "offload_optimizer": offload, "sub_group_size": 1_000_000}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
        "zero_optimization": zero,
    }
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)  # freed tensors go back to the system
    torch.manual_seed(0)
    if room is not None:
        limit = data_bytes() + room
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    model = shapes.GPT(shapes.GPTShape(LAYERS, WIDTH, 8, 64))
    engine, *_ = deepspeed.initialize(model=model, config=config)
    losses = []
    for step in range(STEPS):
        pair = texts.batch_at(text, step=step, rank=0, seed=0, batch=2, context=64)
        loss = engine(*pair)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    engine.destroy()
    return losses


@pytest.mark.slow
def test_state_beyond_the_limit_trains_from_nvme_with_the_same_losses(tmp_path):
    [free] = run_ranks(train, 1, "none", None, str(tmp_path), timeout=120)
    [limited] = run_ranks(train, 1, "nvme", ROOM, str(tmp_path), timeout=120)
    assert limited == free
    assert limited[-1] < limited[0]


@pytest.mark.slow
def test_the_same_limit_without_nvme_is_a_memory_error_that_names_the_remedy(tmp_path):
    with pytest.raises(RankFailure, match=r"no memory for the optimizer's state: .*nvme"):
        run_ranks(train, 1, "none", ROOM, str(tmp_path), timeout=120)
