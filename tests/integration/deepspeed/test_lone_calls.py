"""Calls that all ranks must make, made by one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import deepspeed
from ds_core.errors import CollectiveTimeout
from support.ranks import run_ranks


def save_alone(folder: str) -> str:
    model = torch.nn.Linear(2, 2)
    config = {"train_batch_size": 2, "optimizer": {"type": "Adam"}}
    engine, *_ = deepspeed.initialize(model=model, config=config)
    if engine.global_rank:
        return ""
    with pytest.raises(CollectiveTimeout) as told:
        engine.save_checkpoint(folder)
    return str(told.value)


def test_a_checkpoint_that_one_rank_saves_alone_says_who_must_call(tmp_path: Path) -> None:
    text, _ = run_ranks(save_alone, 2, str(tmp_path), timeout=4)
    assert "(save_checkpoint: every rank must call it)" in text
    assert "rank 1: has not arrived" in text
