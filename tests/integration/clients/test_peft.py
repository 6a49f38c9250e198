"""LoRA by peft trains only its adapters, at ZeRO-2 and 3, as it does without DeepSpeed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file

import deepspeed
from integration.clients.test_trainer import config_of, logged, make_trainer
from integration.clients.tiny import make_model
from support.ranks import run_ranks


def make_lora(model: Any = None) -> PeftModel:
    model = model or make_model()
    torch.manual_seed(3)
    config = LoraConfig(
        r=4,
        lora_alpha=8,
        lora_dropout=0.0,
        target_modules=["q_proj", "v_proj"],
        init_lora_weights="gaussian",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)


def train(folder: str, config: dict[str, Any] | None, options: dict[str, Any]) -> list[float]:
    trainer = make_trainer(folder, config, make_lora(), **options)
    trainer.train()
    trainer.save_model(folder + "/final")
    return logged(trainer, "loss")


@pytest.mark.parametrize(("ranks", "accumulate"), [(1, 2), (2, 1)])
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_lora_trains_as_without_deepspeed(stage, ranks, accumulate, tmp_path):
    options = {"gradient_accumulation_steps": accumulate, "learning_rate": 0.05}
    alone = {**options, "gradient_accumulation_steps": 2}
    plain = run_ranks(train, 1, str(tmp_path / "plain"), None, alone)[0]
    ours = run_ranks(train, ranks, str(tmp_path), config_of(stage), options)[0]
    assert ours == pytest.approx(plain, rel=1e-4)
    mine = load_file(tmp_path / "final" / "adapter_model.safetensors")
    other = load_file(tmp_path / "plain" / "final" / "adapter_model.safetensors")
    assert mine.keys() == other.keys()
    for name, value in other.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-3, atol=1e-4)


def save_then_resume(folder: str, config: dict[str, Any]) -> tuple[list[float], list[float]]:
    whole = make_trainer(folder, config, make_lora(), save_strategy="steps", save_steps=2)
    whole.train()
    again = make_trainer(folder, config, make_lora())
    again.train(resume_from_checkpoint=f"{folder}/checkpoint-2")
    return logged(whole, "loss"), logged(again, "loss")


@pytest.mark.parametrize("stage", [2, 3])
def test_a_checkpoint_without_the_frozen_weights_resumes(stage, tmp_path):
    first, again = run_ranks(save_then_resume, 1, str(tmp_path), config_of(stage))[0]
    assert again[-2:] == pytest.approx(first[-2:], rel=1e-5)


def merged_under_zero3() -> float:
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": 3},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
    }
    model = make_lora()
    engine, *_ = deepspeed.initialize(model=model, config=config)
    tokens = torch.arange(8).reshape(1, 8)
    for _ in range(2):
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()
    engine.eval()
    with torch.no_grad():
        apart = engine(input_ids=tokens).logits
        with deepspeed.zero.GatheredParameters(model.parameters()):
            model.merge_adapter()
            together = model(input_ids=tokens).logits
            model.unmerge_adapter()
    return float((apart - together).abs().max())


def test_adapters_merge_inside_gathered_parameters():
    assert run_ranks(merged_under_zero3, 1)[0] < 1e-4


def train_low_precision(
    folder: str, config: dict[str, Any], reentrant: bool | None
) -> tuple[list[float], set[torch.dtype]]:
    """A bf16 base under fp32 adapters, which peft makes by default."""
    model = make_lora(make_model().to(torch.bfloat16))
    model.enable_input_require_grads()
    options: dict[str, Any] = {"learning_rate": 0.05}
    if reentrant is not None:
        kwargs = {"use_reentrant": reentrant}
        options |= {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": kwargs}
    kinds = {param.dtype for param in model.parameters()}
    trainer = make_trainer(folder, config, model, **options)
    trainer.train()
    return logged(trainer, "loss"), kinds


@pytest.mark.parametrize("reentrant", [None, True, False])
@pytest.mark.parametrize("stage", [2, 3])
def test_fp32_adapters_over_a_bf16_base_train_also_with_recomputation(stage, reentrant, tmp_path):
    losses, kinds = run_ranks(train_low_precision, 1, str(tmp_path), config_of(stage), reentrant)[0]
    plain = run_ranks(train, 1, str(tmp_path), None, {"learning_rate": 0.05})[0]
    assert kinds == {torch.float32, torch.bfloat16}
    assert losses == pytest.approx(plain, rel=0.02)
