"""Several models under accelerate, as diffusers' scripts and accelerate's own guide have them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.state import AcceleratorState
from accelerate.utils import InitProcessGroupKwargs
from torch import nn
from transformers.utils import ContextManagers

import deepspeed
from integration.clients.tiny import batches, make_model, make_optimizer, train_plain
from support.ranks import run_ranks

STEPS, MICRO = 4, 2


def config_of(stage: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": MICRO,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }


def make_accelerator(**plugins: DeepSpeedPlugin) -> Accelerator:
    gloo = [InitProcessGroupKwargs(backend="gloo")]
    return Accelerator(deepspeed_plugins=plugins, kwargs_handlers=gloo)


def steps(accelerator: Accelerator, model: Any, optimizer: Any) -> list[float]:
    """Training steps on batches that all ranks share."""
    losses = []
    for batch in batches(MICRO, STEPS):
        loss = model(**batch).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def train_two() -> tuple[list[float], list[float]]:
    """One model at stage 2, one at stage 3, each with an accelerator of its own."""
    second = DeepSpeedPlugin(hf_ds_config=config_of(2))
    third = DeepSpeedPlugin(hf_ds_config=config_of(3))
    at_two, at_three = make_accelerator(two=second, three=third), Accelerator()
    first = make_model()
    first, first_optimizer = at_two.prepare(first, make_optimizer(first.parameters()))
    at_two.state.select_deepspeed_plugin("three")
    other = make_model(seed=1)
    other, other_optimizer = at_three.prepare(other, make_optimizer(other.parameters()))
    losses = []
    for accelerator, name, model, optimizer in (
        (at_two, "two", first, first_optimizer),
        (at_three, "three", other, other_optimizer),
    ):
        accelerator.state.select_deepspeed_plugin(name)
        losses.append(steps(accelerator, model, optimizer))
    return losses[0], losses[1]


def plain(seed: int) -> list[float]:
    options = {"steps": STEPS, "batch": MICRO, "micro_batches": 1, "max_norm": 1.0}
    return train_plain(**options, schedule=None, model=make_model(seed=seed))[0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_two_models_train_under_two_plugins(ranks):
    for first, other in run_ranks(train_two, ranks):
        assert first == pytest.approx(plain(0), rel=1e-5)
        assert other == pytest.approx(plain(1), rel=1e-5)


def distil() -> tuple[float, float]:
    """A student at stage 2 follows a teacher that is cut at stage 3 and never trains."""
    student_plugin = DeepSpeedPlugin(hf_ds_config=config_of(2))
    teacher_plugin = DeepSpeedPlugin(hf_ds_config=config_of(3))
    accelerator = make_accelerator(student=student_plugin, teacher=teacher_plugin)
    student = make_model()
    student, optimizer = accelerator.prepare(student, make_optimizer(student.parameters()))
    accelerator.state.select_deepspeed_plugin("teacher")
    teacher = accelerator.prepare(make_model(seed=1)).eval()
    accelerator.state.select_deepspeed_plugin("student")
    distances = []
    for batch in batches(MICRO, STEPS) * 3:
        with torch.no_grad():
            goal = teacher(batch["input_ids"]).logits
        distance = (student(batch["input_ids"]).logits - goal).square().mean()
        accelerator.backward(distance)
        optimizer.step()
        optimizer.zero_grad()
        distances.append(distance.item())
    return distances[0], distances[-1]


def test_a_student_follows_a_teacher_of_another_stage():
    for first, last in run_ranks(distil, 2):
        assert last < 0.8 * first


class Denoiser(nn.Module):
    """Stands where the U-Net of a diffusion script stands."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(40, 32), nn.SiLU(), nn.Linear(32, 8))

    def forward(self, noisy: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        return self.layers(torch.cat([noisy, condition], dim=-1))


def without_zero_init() -> list[Any]:
    """What diffusers' scripts wrap the making of frozen models in."""
    return [AcceleratorState().deepspeed_plugin.zero3_init_context_manager(enable=False)]


def diffuse(stage: int, folder: str) -> tuple[list[float], int, float]:
    plugin = DeepSpeedPlugin(hf_ds_config=config_of(stage) | {"gradient_accumulation_steps": 2})
    gloo = [InitProcessGroupKwargs(backend="gloo")]
    accelerator = Accelerator(
        deepspeed_plugin=plugin, kwargs_handlers=gloo, gradient_accumulation_steps=2
    )
    with ContextManagers(without_zero_init()):
        encoder = make_model().model
    encoder.requires_grad_(False)
    torch.manual_seed(4)
    denoiser = Denoiser()
    average = copy.deepcopy(denoiser)
    optimizer = torch.optim.AdamW(denoiser.parameters(), lr=0.01)
    data = torch.utils.data.DataLoader([b["input_ids"] for b in batches(1, 16)], batch_size=2)
    denoiser, optimizer, data = accelerator.prepare(denoiser, optimizer, data)
    losses = []
    for tokens in data:
        with accelerator.accumulate(denoiser):
            generator = torch.Generator().manual_seed(len(losses))
            noise = torch.randn(len(tokens), 8, generator=generator)
            with torch.no_grad():
                condition = encoder(tokens[:, 0]).last_hidden_state.mean(1)
            loss = (denoiser(noise * 0.5, condition) - noise).square().mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(denoiser.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            follow(average, accelerator.unwrap_model(denoiser))
        losses.append(loss.item())
    accelerator.save_state(folder)
    pairs = zip(average.parameters(), whole(denoiser), strict=True)
    apart = [(slow - param).abs().max() for slow, param in pairs]
    held = sum(param.numel() for param in encoder.parameters())
    return losses, held, float(max(apart))


@torch.no_grad()
def follow(average: nn.Module, model: nn.Module) -> None:
    """The exponential mean of the weights, as `EMAModel.step` gathers it."""
    for slow, param in zip(average.parameters(), model.parameters(), strict=True):
        with deepspeed.zero.GatheredParameters([param], modifier_rank=None):
            slow.lerp_(param, 0.5)


def whole(engine: Any) -> list[torch.Tensor]:
    params = list(engine.module.parameters())
    with deepspeed.zero.GatheredParameters(params):
        return [param.detach().clone() for param in params]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_diffusion_script_trains_alike_at_every_stage(ranks, tmp_path):
    reference, held, _ = run_ranks(diffuse, ranks, 0, str(tmp_path / "0"))[0]
    assert held > 10_000
    for stage in (2, 3):
        losses, kept, apart = run_ranks(diffuse, ranks, stage, str(tmp_path / str(stage)))[0]
        assert losses == pytest.approx(reference, rel=1e-5)
        assert kept == held  # the frozen model was not cut
        assert 0 < apart < 0.1
