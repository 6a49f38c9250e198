"""trl: preference training with a frozen reference model, at ZeRO-2 and 3."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers.training_args
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, TrainerCallback
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer
from trl.models.utils import prepare_deepspeed, unwrap_model_for_generation

from integration.clients.test_trainer import config_of, logged, make_trainer
from integration.clients.tiny import VOCABULARY, make_model
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


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Words are numbers; nothing is downloaded."""
    vocabulary = {"<s>": 0, "</s>": 1, "<pad>": 2} | {str(n): n for n in range(3, VOCABULARY)}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **special)


def words(first: int, count: int = 6) -> str:
    return " ".join(str(3 + (first + 2 * n) % (VOCABULARY - 3)) for n in range(count))


def trl_options(folder: str, config: dict[str, Any] | None) -> dict[str, Any]:
    transformers.training_args.is_torch_bf16_gpu_available = lambda: True
    return {
        "output_dir": folder,
        "per_device_train_batch_size": 2,
        "max_steps": 3,
        "learning_rate": 5e-3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "deepspeed": config,
        "use_cpu": config is None,
        "max_length": 12,
    }


def fine_tune(folder: str, config: dict[str, Any] | None) -> list[float]:
    data = Dataset.from_dict({"text": [words(n) for n in range(24)]})
    trainer = SFTTrainer(
        model=make_model(),
        args=SFTConfig(**trl_options(folder, config)),
        train_dataset=data,
        processing_class=make_tokenizer(),
    )
    trainer.train()
    return logged(trainer, "loss")


def prefer(folder: str, config: dict[str, Any] | None) -> list[float]:
    rows = [
        {"prompt": words(n), "chosen": words(n + 9), "rejected": words(n + 5)} for n in range(24)
    ]
    trainer = DPOTrainer(
        model=make_model(),
        ref_model=make_model(seed=1),
        args=DPOConfig(**trl_options(folder, config)),
        train_dataset=Dataset.from_list(rows),
        processing_class=make_tokenizer(),
    )
    trainer.train()
    return logged(trainer, "loss")


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("program", [fine_tune, prefer])
def test_trainers_of_trl_log_the_losses_they_log_without_deepspeed(program, stage, tmp_path):
    ours = run_ranks(program, 1, str(tmp_path), config_of(stage))[0]
    plain = run_ranks(program, 1, str(tmp_path), None)[0]
    assert len(ours) == 3
    assert ours == pytest.approx(plain, rel=1e-4)
