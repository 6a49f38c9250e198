"""Ranks whose control flow differs: the right result, or an error that names who waits."""

from __future__ import annotations

import os
import re
import signal
import time
from contextlib import suppress

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ds_core.errors import CollectiveTimeout
from ds_zero.sections import ZeroSection
from support.ranks import run_ranks
from support.zero_models import Reference, batch, engine_of

FRUGAL = ZeroSection(
    stage=3, stage3_param_persistence_threshold=0, stage3_max_reuse_distance=0, overlap_comm=True
)
TIMEOUT = 8.0


class Either(nn.Module):
    """Goes one of two ways, as its data say."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.stem(x)
        way = self.left if x.sum() > 0 else self.right
        return way(hidden).square().mean()


def inputs(step: int, rank: int) -> Tensor:
    sign = 1.0 if step % 3 else -1.0
    return sign * torch.rand(2, 4, generator=torch.Generator().manual_seed(10 * step + rank))


def either(prefetch: int) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = Either()
    section = ZeroSection(
        stage=3, stage3_param_persistence_threshold=0, stage3_prefetch_bucket_size=prefetch
    )
    engine = engine_of(section, model, groups=[{"params": list(model.parameters())}])
    for step in range(6):
        engine.backward(engine(inputs(step, dist.get_rank())))
        engine.step()
    return {name: engine.strategy.held(p).clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("prefetch", [0, 10**6])
def test_a_branch_that_changes_by_step_equals_plain_torch(prefetch):
    torch.manual_seed(0)
    model = Either()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(6):
        for rank in range(2):
            (model(inputs(step, rank)) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    for found in run_ranks(either, 2, prefetch):
        for name, value in model.named_parameters():
            torch.testing.assert_close(found[name], value.detach(), rtol=1e-5, atol=1e-6)


def alone(fate: str) -> str:
    """What rank 0 is told when rank 1 does not come along."""
    engine = engine_of(FRUGAL, Reference())
    box: list[int] = [0, 0]
    dist.all_gather_object(box, os.getpid())
    if dist.get_rank() == 1:
        time.sleep(TIMEOUT + 6)
        return ""
    try:
        if fate == "hangs":
            os.kill(box[1], signal.SIGSTOP)
        engine.backward(engine(*batch(0, 0)))
        engine.step()
    except CollectiveTimeout as error:
        return str(error)
    finally:
        with suppress(ProcessLookupError):
            os.kill(box[1], signal.SIGCONT)
    return "nothing"


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_with_the_parameter_that_is_waited_for():
    told, _ = run_ranks(alone, 2, "hangs", timeout=90, group_timeout=TIMEOUT)
    assert "rank 0 of 2" in told
    assert "embed.weight" in told
    assert "rank 1: has not arrived" in told


@pytest.mark.slow
def test_a_rank_that_skips_the_step_is_named_with_the_gradients_that_are_waited_for():
    told, _ = run_ranks(alone, 2, "idles", timeout=90, group_timeout=TIMEOUT)
    assert "in the first backward, ahead of gradients of norm.bias" in told
    assert "rank 1: has not arrived" in told


def elsewhere() -> str:
    """Rank 1 goes on to its next step while rank 0 consolidates for a checkpoint."""
    engine = engine_of(FRUGAL, Reference())
    try:
        if dist.get_rank() == 0:
            with engine.strategy.gather(engine.module.parameters()):
                dist.barrier()
        else:
            engine.backward(engine(*batch(0, 0)))
            engine.step()
    except (CollectiveTimeout, RuntimeError) as error:
        time.sleep(2)  # let the other find out by itself
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.slow
def test_ranks_that_do_different_things_end_with_errors():
    _, told = run_ranks(elsewhere, 2, timeout=90, group_timeout=TIMEOUT)
    assert told.startswith("CollectiveTimeout: rank 1 of 2")
    waits = r"rank 1: waits in \w+ number \d+ \((.*gradients of )?[\w.]+\.(weight|bias)"
    assert re.search(waits, told)
    assert re.search(r"rank 0: (waits in|has not arrived)", told)
