"""trl: preference training with a frozen reference model, at ZeRO-2 and 3."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import TrainerCallback
from trl.models.utils import prepare_deepspeed, unwrap_model_for_generation

from integration.clients.test_trainer import config_of, make_trainer
from integration.clients.tiny import make_model
from support.ranks import run_ranks


class Generate(TrainerCallback):
    """Samples from the model in the middle of training, as trl's online trainers do."""

    def __init__(self) -> None:
        self.trainer: Any = None
        self.lengths: list[int] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        accelerator = self.trainer.accelerator
        with unwrap_model_for_generation(self.trainer.model_wrapped, accelerator) as model:
            tokens = torch.ones(1, 3, dtype=torch.long)
            made = model.generate(tokens, max_new_tokens=4, min_new_tokens=4, do_sample=False)
            self.lengths.append(made.shape[1])


def train(folder: str, stage: int, samples: bool) -> tuple[list[float], list[int], float]:
    trainer = make_trainer(folder, config_of(stage))
    callback = Generate()
    callback.trainer = trainer
    if samples:
        trainer.add_callback(callback)
    trainer.train()
    reference = prepare_deepspeed(make_model(seed=1), trainer.accelerator)
    tokens = torch.arange(8).reshape(1, 8)
    with torch.no_grad():
        distance = (reference(tokens).logits - make_model(seed=1)(tokens).logits).abs().max()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return losses, callback.lengths, float(distance)


@pytest.mark.parametrize("stage", [2, 3])
def test_generating_between_steps_changes_nothing(stage, tmp_path):
    without, _, distance = run_ranks(train, 1, str(tmp_path), stage, False)[0]
    losses, lengths, _ = run_ranks(train, 1, str(tmp_path), stage, True)[0]
    assert losses == pytest.approx(without, rel=1e-6)
    assert lengths == [7] * len(losses)
    assert distance < 1e-5
