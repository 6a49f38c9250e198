"""Stage 3 while a program does what programs do."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ds_core.errors import StateError
from ds_zero.gathered import GatheredParameters
from ds_zero.init import Init
from ds_zero.leaves import set_z3_leaf_modules
from ds_zero.params import ZeroParamStatus
from ds_zero.safe import safe_get_full_fp32_param, safe_get_full_grad
from ds_zero.sections import ZeroSection
from support.ranks import RankFailure, run_ranks
from support.zero_models import Reference, batch, engine_of, train

FRUGAL = ZeroSection(
    stage=3, stage3_param_persistence_threshold=0, stage3_max_reuse_distance=0, overlap_comm=True
)


def edits() -> dict[str, object]:
    engine = engine_of(FRUGAL, Reference())
    weight = engine.module.l1.weight
    with GatheredParameters(weight, modifier_rank=1):
        nn.init.constant_(weight, float(dist.get_rank()))
    assert weight.numel() == 0
    value = safe_get_full_fp32_param(weight)
    try:
        with GatheredParameters([weight]):
            weight.data.fill_(7.0)
    except StateError as error:
        message = str(error)
    nn.init.zeros_(weight)
    try:
        engine(*batch(0, 0))
    except StateError as error:
        return {"value": value, "undeclared": message, "empty": str(error)}
    raise AssertionError("a write to an empty parameter went unnoticed")


def test_declared_edits_reach_all_and_others_raise_by_name():
    for found in run_ranks(edits, 2):
        assert torch.equal(found["value"], torch.ones(24, 8))
        assert "l1.weight" in found["undeclared"]
        assert "l1.weight" in found["empty"]


class Blocks(nn.Module):
    """Recomputed blocks, one of them called several times."""

    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.embed = nn.Embedding(17, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
            for _ in range(3)
        )
        self.head = nn.Linear(8, 17)
        self.reentrant = reentrant

    def forward(self, tokens, targets):
        hidden = self.embed(tokens)
        for block in (*self.blocks, self.blocks[0]):
            if self.reentrant is None:
                hidden = hidden + block(hidden)
            else:
                hidden = hidden + checkpoint(block, hidden, use_reentrant=self.reentrant)
        loss = nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())
        with torch.no_grad():
            self.head(hidden)  # a look in between
        return loss


def recomputed(reentrant: bool | None) -> list[float]:
    torch.manual_seed(0)
    model = Blocks(reentrant)
    engine = engine_of(FRUGAL, model, groups=[{"params": list(model.parameters())}])
    losses = train(engine, range(4))
    assert all(p.numel() == 0 for p in model.parameters())
    engine.destroy()
    return losses


def test_recomputation_changes_no_bit():
    plain = run_ranks(recomputed, 2, None)
    assert run_ranks(recomputed, 2, False) == plain
    assert run_ranks(recomputed, 2, True) == plain


class Fork(nn.Module):
    """Rank 0 calls its head once, rank 1 three times; rank 1 alone takes a detour."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head, self.detour = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, times: int):
        x = self.stem(x)
        if times > 1:
            x = self.detour(x)
        for _ in range(times):
            x = self.head(x)
        return x.square().mean()


def forked(section: ZeroSection, leaf: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = Fork()
    if leaf:
        set_z3_leaf_modules(model, [Fork])
    engine = engine_of(section, model, groups=[{"params": list(model.parameters())}])
    rank = dist.get_rank()
    for step in range(2):
        torch.manual_seed(10 * step + rank)
        loss = engine(torch.randn(4, 8), 1 + 2 * rank)
        engine.backward(loss)
        grads = [safe_get_full_grad(p) for p in model.parameters()]
        engine.step()
    return grads


@pytest.mark.parametrize("leaf", [True, False])
def test_ranks_that_take_different_ways_get_the_mean(leaf):
    expected = run_ranks(forked, 2, ZeroSection(stage=1), False)[0]
    for grads in run_ranks(forked, 2, FRUGAL, leaf):
        for grad, value in zip(grads, expected, strict=True):
            torch.testing.assert_close(grad, value, rtol=1e-5, atol=1e-7)


def leaves_early() -> None:
    engine = engine_of(FRUGAL, Reference())
    if dist.get_rank() == 0:
        engine(*batch(0, 0)).backward()
        engine.step()
    else:
        engine.destroy()


def test_a_rank_that_leaves_ends_the_wait_with_a_name():
    with pytest.raises(RankFailure, match=r"rank \d of 2"):
        run_ranks(leaves_early, 2, timeout=60, group_timeout=5)


def built() -> tuple[int, list[float]]:
    torch.manual_seed(dist.get_rank())
    with Init(config_dict_or_path={"zero_optimization": {"stage": 3}}):
        with Init():
            model = Reference()
        assert model.l1.weight.ds_status is ZeroParamStatus.NOT_AVAILABLE
        assert model.l1.weight.ds_shape == (24, 8)
        extra = torch.arange(3)
    assert extra.dtype == torch.int64
    assert nn.Linear(2, 2).weight.numel() == 4
    return sum(p.ds_tensor.numel() for p in model.parameters()), train(
        engine_of(FRUGAL, model), range(3)
    )


def whole() -> list[float]:
    torch.manual_seed(0)
    return train(engine_of(ZeroSection(stage=1), Reference()), range(3))


def test_a_model_built_in_shares_trains_like_a_whole_one():
    expected = run_ranks(whole, 2)
    total = sum(p.numel() for p in Reference().parameters())
    for (held, losses), plain in zip(run_ranks(built, 2), expected, strict=True):
        assert held <= total // 2 + 10
        assert losses == pytest.approx(plain, rel=1e-5)


def start_and_stop(stage: int) -> int:
    model = Reference()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(3):
        section = ZeroSection(stage=stage, stage3_param_persistence_threshold=0)
        engine_of(section, model).destroy()
    after = model.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert not any(hasattr(p, "ds_id") for p in model.parameters())
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())
    model(*batch(0, 0)).backward()
    return hooks


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_destroyed_engine_leaves_a_plain_module(stage):
    assert run_ranks(start_and_stop, 1, stage) == [0]


def generate_between(interrupt: bool) -> list[float]:
    torch.manual_seed(0)
    engine = engine_of(FRUGAL, Reference())
    losses = train(engine, range(2))
    if interrupt:
        offload = engine.strategy.parameter_offload
        for hook in offload.forward_hooks:
            hook.remove()
        offload.forward_hooks = []
        with GatheredParameters(engine.module.parameters()), torch.no_grad():
            engine.module(*batch(9, 0))
        offload._register_deepspeed_module(offload.module)
    return losses + train(engine, range(2, 4))


def test_hooks_can_be_taken_off_for_generation_and_put_back():
    assert run_ranks(generate_between, 2, True) == run_ranks(generate_between, 2, False)


class Pair(nn.Module):
    """Two layers of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).tanh()).square().mean()


def points(step: int, rank: int, number: int = 0) -> torch.Tensor:
    seed = 100 * step + 10 * number + rank
    return torch.randn(3, 4, generator=torch.Generator().manual_seed(seed))


def pair(way: str) -> list[torch.Tensor]:
    """Weights after some steps, with something unusual in each."""
    torch.manual_seed(0)
    model, rank = Pair(), dist.get_rank()
    engine = engine_of(FRUGAL, model, groups=[{"params": list(model.parameters())}], max_norm=0.0)
    names = dict(model.named_parameters())
    if way == "tied":
        model.last.weight = model.first.weight
    for step in range(3):
        if way == "evaluated" and rank == step % 2:
            engine.eval()
            with torch.no_grad():
                engine(points(99, rank))
            engine.train()
        loss = engine(points(step, rank))
        if way == "several":
            loss = loss + engine(points(step, rank, 1)) + engine(points(step, rank, 2))
        engine.backward(loss)
        engine.step()
    return [engine.strategy.held(param).clone() for param in names.values()]


@pytest.mark.parametrize("way", ["plain", "tied", "evaluated", "several"])
def test_unusual_steps_equal_plain_torch(way):
    torch.manual_seed(0)
    model = Pair()
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=0.01)
    if way == "tied":
        model.last.weight = model.first.weight
    for step in range(3):
        for rank in range(2):
            for number in range(3 if way == "several" else 1):
                (model(points(step, rank, number)) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    for found in run_ranks(pair, 2, way):
        for value, param in zip(found, params, strict=True):
            torch.testing.assert_close(value, param.detach(), rtol=1e-5, atol=1e-6)


def evaluate_in_inference_mode() -> Tensor:
    engine = engine_of(FRUGAL, Reference())
    for step in range(2):
        engine.eval()
        with torch.inference_mode():
            engine(*batch(9, 0))
        engine.train()
        train(engine, range(step, step + 1))
    return engine.strategy.held(engine.module.l1.weight)


def test_evaluation_in_inference_mode_leaves_training_as_it_is():
    first, second = run_ranks(evaluate_in_inference_mode, 2)
    assert torch.equal(first, second)
    expected, _ = run_ranks(train_two_steps, 2)
    assert torch.equal(first, expected)


def train_two_steps() -> Tensor:
    engine = engine_of(FRUGAL, Reference())
    train(engine, range(2))
    return engine.strategy.held(engine.module.l1.weight)
