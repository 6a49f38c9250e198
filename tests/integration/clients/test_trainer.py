"""The Hugging Face Trainer logs the same losses with a DeepSpeed config as without."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers.training_args
from accelerate import PartialState
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from integration.clients.tiny import Tokens, collate, make_model, tiny_config
from support.ranks import run_ranks

STEPS = 4
FILLED_IN = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
    "zero_allow_untested_optimizer": True,
    "steps_per_print": float("inf"),
}
OF_DEEPSPEED = {
    "optimizer": {
        "type": "AdamW",
        "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
    },
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_min_lr": "auto",
            "warmup_max_lr": "auto",
            "warmup_num_steps": "auto",
            "total_num_steps": "auto",
        },
    },
}


def config_of(stage: int, **sections: Any) -> dict[str, Any]:
    zero = {
        "stage": stage,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_gather_16bit_weights_on_model_save": True,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "sub_group_size": 1e9,
    }
    return FILLED_IN | {"zero_optimization": zero} | sections


def make_arguments(folder: str, config: Any, **options: Any) -> TrainingArguments:
    if torch.distributed.get_world_size() > 1 and config is not None:
        os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
        PartialState(backend="gloo")  # without it accelerate counts one process on a CPU
        options["accelerator_config"] = {"use_configured_state": True}
    # TrainingArguments refuses bf16 on a CPU unless use_cpu, which would switch DeepSpeed off.
    transformers.training_args.is_torch_bf16_gpu_available = lambda: True
    chosen = {
        "output_dir": folder,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_grad_norm": 0.5,
        "max_steps": STEPS,
        "learning_rate": 5e-3,
        "weight_decay": 0.1,
        "warmup_steps": 1,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 7,
        "deepspeed": config,
        "use_cpu": config is None,
    } | options
    return TrainingArguments(**chosen)


def make_trainer(folder: str, config: Any, model: Any = None, **options: Any) -> Trainer:
    return Trainer(
        model=model or make_model(),
        args=make_arguments(folder, config, **options),
        train_dataset=Tokens(),
        eval_dataset=Tokens(8, seed=1),
        data_collator=collate,
    )


def logged(trainer: Trainer, key: str) -> list[float]:
    return [float(entry[key]) for entry in trainer.state.log_history if key in entry]


def train(folder: str, config: dict[str, Any] | None, options: dict[str, Any]) -> dict[str, Any]:
    trainer = make_trainer(folder, config, **options)
    trainer.train()
    trainer.save_model(folder + "/final")
    losses, rates = logged(trainer, "loss"), logged(trainer, "learning_rate")
    norms = logged(trainer, "grad_norm")
    return {"loss": losses, "rate": rates, "norm": norms, "eval": trainer.evaluate()["eval_loss"]}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("plain")
    return run_ranks(train, 1, str(folder), None, {})[0] | {"folder": folder}


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_losses_norms_and_rates_equal_those_without_deepspeed(stage, plain, tmp_path):
    ours = run_ranks(train, 1, str(tmp_path), config_of(stage), {})[0]
    for key in ("loss", "rate", "norm"):
        assert ours[key] == pytest.approx(plain[key], rel=1e-4), key
    assert ours["eval"] == pytest.approx(plain["eval"], rel=1e-4)
    mine = load_file(tmp_path / "final" / "model.safetensors")
    other = load_file(plain["folder"] / "final" / "model.safetensors")
    assert mine.keys() == other.keys()
    for name, value in other.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_two_ranks_train_like_one_that_accumulates_twice_as_much(stage, plain, tmp_path):
    options = {"gradient_accumulation_steps": 1}
    ours = run_ranks(train, 2, str(tmp_path), config_of(stage), options)[0]
    assert ours["loss"] == pytest.approx(plain["loss"], rel=1e-4)
    assert ours["norm"] == pytest.approx(plain["norm"], rel=1e-4)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bf16_follows_fp32(stage, plain, tmp_path):
    ours = run_ranks(train, 1, str(tmp_path), config_of(stage), {"bf16": True})[0]
    assert ours["loss"] == pytest.approx(plain["loss"], rel=0.02)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_optimizer_and_schedule_may_come_from_the_json(stage, tmp_path):
    ours = run_ranks(train, 1, str(tmp_path), config_of(stage, **OF_DEEPSPEED), {})[0]
    assert len(ours["loss"]) == STEPS
    assert max(ours["rate"]) <= 5e-3


def save_then_resume(folder: str, config: dict[str, Any]) -> tuple[list[float], list[float]]:
    whole = make_trainer(folder, config, save_strategy="steps", save_steps=2)
    whole.train()
    first = logged(whole, "loss")
    again = make_trainer(folder, config)
    again.train(resume_from_checkpoint=f"{folder}/checkpoint-2")
    return first, logged(again, "loss")


@pytest.mark.parametrize("sections", [{}, OF_DEEPSPEED], ids=["torch", "json"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_resumed_run_repeats_the_losses(stage, sections, tmp_path):
    config = config_of(stage, **sections)
    first, again = run_ranks(save_then_resume, 1, str(tmp_path), config)[0]
    assert again[-2:] == pytest.approx(first[-2:], rel=1e-5)
    assert list((tmp_path / "checkpoint-2").glob("global_step*"))


def load_whole(folder: str, checkpoint: str) -> None:
    """What a program does that turns a checkpoint into one file of weights."""
    from deepspeed.utils.zero_to_fp32 import (
        convert_zero_checkpoint_to_fp32_state_dict,
        get_fp32_state_dict_from_zero_checkpoint,
    )

    convert_zero_checkpoint_to_fp32_state_dict(checkpoint, folder, safe_serialization=True)
    state = get_fp32_state_dict_from_zero_checkpoint(checkpoint)
    model = make_model(seed=1)
    model.load_state_dict(state)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_checkpoints_consolidate_to_fp32(stage, tmp_path):
    options = {"save_strategy": "steps", "save_steps": STEPS, "gradient_accumulation_steps": 1}
    run_ranks(train, 2, str(tmp_path), config_of(stage), options)
    run_ranks(load_whole, 1, str(tmp_path / "whole"), str(tmp_path / f"checkpoint-{STEPS}"))
    final = load_file(tmp_path / "final" / "model.safetensors")
    whole = load_file(tmp_path / "whole" / "model.safetensors")
    for name, value in final.items():
        torch.testing.assert_close(whole[name], value)


def train_from_pretrained(folder: str, config: dict[str, Any]) -> tuple[int, list[float]]:
    arguments = make_arguments(folder, config)  # must live: transformers asks it
    model = AutoModelForCausalLM.from_pretrained(folder + "/saved", dtype=torch.float32)
    held = sum(param.numel() for param in model.parameters())
    trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(), data_collator=collate)
    trainer.train()
    return held, logged(trainer, "loss")


def test_from_pretrained_builds_and_loads_partitioned_parameters(plain, tmp_path):
    make_model().save_pretrained(tmp_path / "saved")
    held, losses = run_ranks(train_from_pretrained, 1, str(tmp_path), config_of(3))[0]
    assert held == 0  # parameters were cut as they were made
    assert losses == pytest.approx(plain["loss"], rel=1e-4)


def train_from_config(folder: str, config: dict[str, Any]) -> list[float]:
    options = {"gradient_accumulation_steps": 1}
    arguments = make_arguments(folder, config, **options)  # must live: transformers asks it
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_config())
    assert sum(param.numel() for param in model.parameters()) == 0
    trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(), data_collator=collate)
    trainer.train()
    return logged(trainer, "loss")


def test_from_config_builds_partitioned_parameters(tmp_path):
    first, second = run_ranks(train_from_config, 2, str(tmp_path), config_of(3))
    assert first == second
    assert first[-1] < 4.4


def test_a_config_file_may_be_given_by_path(tmp_path):
    path = Path(tmp_path / "ds.json")
    path.write_text(json.dumps(config_of(2) | {"steps_per_print": 10}))
    run_ranks(train, 1, str(tmp_path), str(path), {})
