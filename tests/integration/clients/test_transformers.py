"""transformers without its Trainer: `HfDeepSpeedConfig`, an engine, generation on all ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.integrations import HfDeepSpeedConfig, is_deepspeed_zero3_enabled

import deepspeed
from integration.clients.tiny import LEARNING_RATE, WEIGHT_DECAY, batches, make_model, train_plain
from support.ranks import run_ranks

STEPS, MICRO = 3, 2


def config_of(stage: int) -> dict[str, Any]:
    params = {"lr": LEARNING_RATE, "weight_decay": WEIGHT_DECAY}
    return {
        "train_micro_batch_size_per_gpu": MICRO,
        "gradient_clipping": 0.5,
        "optimizer": {"type": "AdamW", "params": params},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }


def train(stage: int, folder: str) -> tuple[int, list[float], list[list[int]]]:
    """The recipe of transformers' guide, "non-Trainer integration"."""
    keeper = HfDeepSpeedConfig(config_of(stage))  # must live while models are loaded
    assert is_deepspeed_zero3_enabled() == (stage == 3)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    held = sum(param.numel() for param in model.parameters())
    engine, *_ = deepspeed.initialize(model=model, config_params=config_of(stage))
    losses = []
    every = batches(MICRO, STEPS * engine.world_size)
    for step in range(STEPS):
        batch = every[step * engine.world_size + engine.global_rank]
        loss = engine(**batch).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    engine.eval()
    start = every[0]["input_ids"][:, :4]
    options = {"max_new_tokens": 3, "do_sample": False, "use_cache": False}
    with torch.no_grad():
        made = engine.module.generate(start, synced_gpus=stage == 3, **options)
    del keeper
    return held, losses, made.tolist()


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("stage", [2, 3])
def test_a_loaded_model_trains_and_generates_without_the_trainer(stage, ranks, tmp_path):
    make_model().save_pretrained(tmp_path)
    answers = run_ranks(train, ranks, stage, str(tmp_path))
    plain, _, _ = train_plain(
        steps=STEPS, batch=MICRO, micro_batches=ranks, max_norm=0.5, schedule=None
    )
    steps = zip(*(losses for _, losses, _ in answers), strict=True)
    together = [loss for step in steps for loss in step]
    assert together == pytest.approx(plain, rel=1e-5)
    whole = sum(param.numel() for param in make_model().parameters())
    assert {held for held, _, _ in answers} == {0 if stage == 3 else whole}
    assert all(made == answers[0][2] for _, _, made in answers)
