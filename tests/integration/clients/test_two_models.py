"""Two engines live in one process: a pair of adversaries, and a policy with its reference."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import deepspeed
from integration.clients.tiny import batches, make_model
from support.ranks import run_ranks

ADAM = {"type": "Adam", "params": {"lr": 0.01, "betas": [0.5, 0.999], "torch_adam": True}}


def config_of(stage: int) -> dict:
    return {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": ADAM,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }


def make_pair() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    maker = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 5))
    judge = nn.Sequential(nn.Linear(5, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    return maker, judge


def adversarial_steps(maker, judge, backward, step_judge, step_maker) -> list[float]:
    """The loop of the GAN tutorial; the judge sees the maker's output detached, then not."""
    losses = []
    criterion = nn.BCEWithLogitsLoss()
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        real = torch.randn(4, 5, generator=generator)
        noise = torch.randn(4, 3, generator=generator)
        fake = maker(noise)
        right, wrong = judge(real), judge(fake.detach())
        loss = criterion(right, torch.ones_like(right))
        loss = loss + criterion(wrong, torch.zeros_like(wrong))
        backward[0](loss)
        step_judge()
        verdict = judge(fake)
        fooled = criterion(verdict, torch.ones_like(verdict))
        backward[1](fooled)
        step_maker()
        losses += [loss.item(), fooled.item()]
    return losses


def with_engines(stage: int) -> list[float]:
    maker, judge = make_pair()
    makes, *_ = deepspeed.initialize(model=maker, config=config_of(stage))
    judges, *_ = deepspeed.initialize(model=judge, config=config_of(stage))

    def step_judge() -> None:
        judges.step()

    def step_maker() -> None:
        makes.step()
        judges.zero_grad()  # the maker's loss went through the judge too

    return adversarial_steps(
        makes, judges, (judges.backward, makes.backward), step_judge, step_maker
    )


def without() -> list[float]:
    maker, judge = make_pair()
    makes = torch.optim.Adam(maker.parameters(), lr=0.01, betas=(0.5, 0.999))
    judges = torch.optim.Adam(judge.parameters(), lr=0.01, betas=(0.5, 0.999))

    def step_judge() -> None:
        judges.step()
        judges.zero_grad()

    def step_maker() -> None:
        makes.step()
        makes.zero_grad()
        judges.zero_grad()

    return adversarial_steps(
        maker, judge, (torch.Tensor.backward, torch.Tensor.backward), step_judge, step_maker
    )


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_adversaries_train_as_in_plain_pytorch(stage, ranks):
    for losses in run_ranks(with_engines, ranks, stage):
        assert losses == pytest.approx(without(), rel=1e-4)


def with_reference(stage: int) -> tuple[float, float, list[float]]:
    """A policy that trains towards a frozen reference, which has no optimizer (stage 3)."""
    policy, *_ = deepspeed.initialize(
        model=make_model(), config={**config_of(stage), "gradient_clipping": 1.0}
    )
    reference, *_ = deepspeed.initialize(
        model=make_model(seed=1),
        config={"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3}},
    )
    reference.eval()
    distances = []
    for batch in batches(4, 3) * 2:
        with torch.no_grad():
            goal = reference(input_ids=batch["input_ids"]).logits.log_softmax(-1)
        mine = policy(input_ids=batch["input_ids"]).logits.log_softmax(-1)
        loss = nn.functional.kl_div(mine, goal, log_target=True, reduction="batchmean")
        policy.backward(loss)
        policy.step()
        distances.append(loss.item())
    return distances[0], distances[-1], distances


@pytest.mark.parametrize("stage", [2, 3])
def test_a_policy_learns_from_a_reference_that_only_evaluates(stage):
    (first, last, every), other = run_ranks(with_reference, 2, stage)
    assert last < first
    assert every == other[2]
