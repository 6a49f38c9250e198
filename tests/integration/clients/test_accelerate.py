"""A manual training loop with accelerate trains as it does without any library."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.utils import DummyOptim, DummyScheduler, InitProcessGroupKwargs
from torch.utils.data import DataLoader

from integration.clients.tiny import (
    LEARNING_RATE,
    WEIGHT_DECAY,
    Tokens,
    collate,
    decaying,
    make_model,
    make_optimizer,
    train_plain,
)
from support.ranks import run_ranks

STEPS, MICRO, CLIP = 4, 2, 0.5


def make_accelerator(stage: int, *, accumulate: int = 1, config: Any = None, **options: Any):
    plugin = DeepSpeedPlugin(
        hf_ds_config=config,
        zero_stage=None if config else stage,
        zero3_save_16bit_model=None if config else True,
        gradient_clipping=None if config else CLIP,
        gradient_accumulation_steps=None if config else accumulate,
    )
    return Accelerator(
        deepspeed_plugin=plugin,
        gradient_accumulation_steps=accumulate,
        step_scheduler_with_optimizer=False,
        kwargs_handlers=[InitProcessGroupKwargs(backend="gloo")],
        **options,
    )


def make_loader(count: int) -> DataLoader[Any]:
    return DataLoader(Tokens(count), batch_size=MICRO, collate_fn=collate)


def loop(accelerator, model, optimizer, loader, schedule):
    """The loop of accelerate's own documentation; (losses, gradient norms)."""
    losses, norms = [], []
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            losses.extend(accelerator.gather(loss.detach().reshape(1)).tolist())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norms.append(accelerator.clip_grad_norm_(model.parameters(), CLIP))
            optimizer.step()
            if accelerator.sync_gradients:
                schedule.step()
            optimizer.zero_grad()
    return losses, norms


def train(stage: int, accumulate: int):
    accelerator = make_accelerator(stage, accumulate=accumulate)
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    loader = make_loader(STEPS * accumulate * accelerator.num_processes * MICRO)
    model, optimizer, loader, schedule = accelerator.prepare(
        model, optimizer, loader, decaying(optimizer)
    )
    losses, norms = loop(accelerator, model, optimizer, loader, schedule)
    return losses, norms, accelerator.get_state_dict(model)


@pytest.mark.parametrize(("ranks", "accumulate"), [(1, 1), (1, 3), (2, 2)])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_manual_loop_trains_as_plain_pytorch(stage, ranks, accumulate):
    losses, norms, weights = run_ranks(train, ranks, stage, accumulate)[0]
    plain_losses, plain_norms, plain_weights = train_plain(
        steps=STEPS, batch=MICRO, micro_batches=ranks * accumulate, max_norm=CLIP
    )
    assert losses == pytest.approx(plain_losses, rel=1e-5)
    assert norms == pytest.approx(plain_norms, rel=1e-4)
    assert weights.keys() == plain_weights.keys()
    for name, value in plain_weights.items():
        torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-5)


FROM_JSON = {
    "train_micro_batch_size_per_gpu": "auto",
    "train_batch_size": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": CLIP,
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {
            "warmup_min_lr": "auto",
            "warmup_max_lr": "auto",
            "warmup_num_steps": "auto",
            "total_num_steps": "auto",
            "warmup_type": "linear",
        },
    },
}


def stage_section(stage: int) -> dict[str, Any]:
    return {
        "stage": stage,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_gather_16bit_weights_on_model_save": True,
    }


def prepare_from_json(stage: int, *, batches: int, **sections: Any):
    config = FROM_JSON | {"zero_optimization": stage_section(stage)} | sections
    accelerator = make_accelerator(stage, accumulate=2, config=config)
    model = make_model()
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1]},
        {"params": [p for p in model.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = DummyOptim(groups, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = DummyScheduler(optimizer, total_num_steps=12, warmup_num_steps=2)
    return accelerator, *accelerator.prepare(
        model, optimizer, make_loader(batches * accelerator.num_processes * MICRO), schedule
    )


def train_from_json(stage: int, sections: dict[str, Any]):
    accelerator, model, optimizer, loader, schedule = prepare_from_json(
        stage, batches=8, **sections
    )
    groups = [(len(group["params"]), group["weight_decay"]) for group in optimizer.param_groups]
    losses, norms = loop(accelerator, model, optimizer, loader, schedule)
    return losses, norms, schedule.get_last_lr(), groups


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_auto_values_groups_and_schedules_of_the_json_reach_the_engine(stage):
    (losses, norms, rates, groups), other = run_ranks(train_from_json, 2, stage, {})
    assert losses == pytest.approx(other[0])
    assert len(norms) == 4
    assert [decay for _, decay in groups] == [WEIGHT_DECAY, 0.0]
    assert rates == pytest.approx([LEARNING_RATE * 3 / 4] * 2)  # 6 steps a rank, 2 of warm-up


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_bf16_follows_fp32(stage):
    exact = run_ranks(train_from_json, 1, 0, {})[0][0]
    rounded = run_ranks(train_from_json, 1, stage, {"bf16": {"enabled": True}})[0][0]
    assert rounded == pytest.approx(exact, rel=0.02)


def save_and_go_on(stage: int, folder: str):
    accelerator, model, optimizer, loader, schedule = prepare_from_json(stage, batches=8)
    every = list(loader)
    loop(accelerator, model, optimizer, every[:4], schedule)
    accelerator.save_state(folder, exclude_frozen_parameters=False)
    after, _ = loop(accelerator, model, optimizer, every[4:], schedule)
    accelerator.save_model(model, f"{folder}/model")
    return after, schedule.get_last_lr()


def resume(stage: int, folder: str):
    accelerator, model, optimizer, loader, schedule = prepare_from_json(stage, batches=8)
    accelerator.load_state(folder)
    after, _ = loop(accelerator, model, optimizer, list(loader)[4:], schedule)
    return after, schedule.get_last_lr()


@pytest.mark.parametrize(("stage", "other"), [(0, 0), (1, 1), (2, 2), (3, 3), (1, 3), (3, 0)])
def test_a_saved_state_resumes_at_any_stage(stage, other, tmp_path):
    went_on = run_ranks(save_and_go_on, 2, stage, str(tmp_path))[0]
    resumed = run_ranks(resume, 2, other, str(tmp_path))[0]
    assert resumed[0] == pytest.approx(went_on[0], rel=1e-5)
    assert resumed[1] == went_on[1]
    assert (tmp_path / "pytorch_model").is_dir()
    assert (tmp_path / "model" / "model.safetensors").exists()


def free(stage: int):
    accelerator, model, optimizer, loader, schedule = prepare_from_json(stage, batches=2)
    plain = accelerator.unwrap_model(model)
    loop(accelerator, model, optimizer, loader, schedule)
    accelerator.free_memory(model, optimizer, loader, schedule)
    return sum(param.numel() for param in plain.parameters())


@pytest.mark.parametrize("stage", [0, 3])
def test_freeing_memory_gives_the_model_back_whole(stage):
    expected = sum(param.numel() for param in make_model().parameters())
    assert run_ranks(free, 1, stage) == [expected]
