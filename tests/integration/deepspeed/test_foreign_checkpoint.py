"""Checkpoints of the original load through `load_checkpoint`; ours leave the recovery script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import deepspeed
from support.zero_models import Reference, two_groups

DATA = Path(__file__).resolve().parents[1] / "ds_zero" / "data"
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
}


@pytest.mark.parametrize("stage", [0, 2, 3])
@pytest.mark.parametrize("written", ["stage1_fp32", "stage3_fp32"])
def test_a_checkpoint_of_the_original_loads_with_its_counters(written, stage):
    torch.manual_seed(1)
    config = {**CONFIG, "zero_optimization": {"stage": stage}}
    model = Reference()
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=two_groups(model), config=config
    )
    path, client_state = engine.load_checkpoint(DATA / written)
    assert path is not None
    assert isinstance(client_state, dict)
    assert engine.global_steps == 3


def test_a_saved_checkpoint_holds_a_script_that_makes_plain_weights(tmp_path):
    torch.manual_seed(0)
    config = {**CONFIG, "zero_optimization": {"stage": 2}}
    engine, *_ = deepspeed.initialize(model=torch.nn.Linear(3, 2), config=config)
    engine.save_checkpoint(tmp_path)
    script = tmp_path / "zero_to_fp32.py"
    subprocess.run([sys.executable, str(script), str(tmp_path), str(tmp_path / "out")], check=True)
    found = list((tmp_path / "out").iterdir())
    assert found
