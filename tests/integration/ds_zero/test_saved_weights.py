"""Ties, frozen and unfrozen weights through checkpoints and out of them."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ds_core.checkpoint import save
from ds_core.contracts.shard import WEIGHT, TensorShard
from ds_core.errors import CheckpointError
from ds_core.training_state import SaveOptions, load_engine, save_engine
from ds_zero import GatheredParameters, recover
from ds_zero.consolidate import get_fp32_state_dict_from_zero_checkpoint
from ds_zero.sections import ZeroSection
from support.ranks import run_ranks
from support.zero_models import engine_of


class Tied(nn.Module):
    """Three names for one weight, none of them first; two names for a frozen one; a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.embed = nn.Embedding(5, 3)
        self.head, self.again = nn.Linear(3, 5, bias=False), nn.Linear(3, 5, bias=False)
        self.head.weight = self.again.weight = self.embed.weight
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.also_frozen = nn.Linear(3, 3)
        self.also_frozen.weight = self.frozen.weight
        self.register_buffer("mean", torch.randn(3))

    def forward(self, rows: Tensor) -> Tensor:
        hidden = self.also_frozen(self.frozen(self.first(self.embed(rows)))) + self.mean
        return self.head(hidden).logsumexp(-1).mean() + self.again(hidden).square().mean()


def engine_over(stage: int, seed: int, *, thaw: bool = False):
    torch.manual_seed(seed)
    model = Tied()
    if thaw:
        model.frozen.requires_grad_(True)
    section = ZeroSection(stage=stage, stage3_param_persistence_threshold=0)
    groups = [{"params": [p for p in model.parameters() if p.requires_grad]}]
    return engine_of(section, model, groups=groups)


def step(engine) -> float:
    loss = engine(torch.arange(4))
    engine.backward(loss)
    engine.step()
    return loss.item()


def whole(engine) -> dict[str, Tensor]:
    """Every parameter under each of its names, and the buffers."""
    module = engine.module
    named = module.named_parameters(remove_duplicate=False)
    found = {name: engine.strategy.held(param).clone() for name, param in named}
    return found | {name: buffer.clone() for name, buffer in module.named_buffers()}


def write(stage: int, folder: str, exclude: bool) -> dict[str, Tensor]:
    engine = engine_over(stage, 0)
    step(engine)
    save_engine(engine, folder, "t", options=SaveOptions(exclude_frozen=exclude))
    return whole(engine)


def read(stage: int, folder: str, thaw: bool) -> tuple[dict[str, Tensor], float]:
    engine = engine_over(stage, 1, thaw=thaw)
    load_engine(engine, folder).close()
    return whole(engine), step(engine)


def read_twice(stage: int, folder: str) -> dict[str, Tensor]:
    """Into a model whose frozen weights are those of the one that was saved."""
    engine = engine_over(stage, 0)
    load_engine(engine, folder).close()
    return whole(engine)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_all_names_of_a_tied_weight_are_consolidated_and_load_strictly(stage, tmp_path):
    live = run_ranks(write, 2, stage, str(tmp_path), False)[0]
    state = get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    assert state.keys() == live.keys()
    assert all(torch.equal(state[name], value) for name, value in live.items())
    Tied().load_state_dict(state, strict=True)


@pytest.mark.parametrize("thaw", [False, True])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_frozen_weights_come_back_also_where_they_are_trained_from_now_on(stage, thaw, tmp_path):
    live = run_ranks(write, 2, stage, str(tmp_path), False)[0]
    for found, loss in run_ranks(read, 2, stage, str(tmp_path), thaw):
        assert all(torch.equal(found[name], value) for name, value in live.items())
        assert loss == loss


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_without_frozen_weights_a_checkpoint_is_smaller_and_loads(stage, tmp_path):
    live = run_ranks(write, 2, stage, str(tmp_path), True)[0]
    assert "frozen.weight" not in get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    for found in run_ranks(read_twice, 2, stage, str(tmp_path)):
        assert all(torch.equal(found[name], value) for name, value in live.items())


def test_a_trained_weight_that_is_missing_is_an_error_with_its_name(tmp_path):
    save(tmp_path, "t", shards=[TensorShard("first.weight", WEIGHT, (3, 3), 0, torch.ones(9))])
    engine = engine_over(1, 0)
    with pytest.raises(CheckpointError, match=r"embed\.weight"):
        load_engine(engine, tmp_path).close()


PEAK = """
import runpy, sys
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    lines = open("/proc/self/status").read().splitlines()
    print("PEAK", next(int(line.split()[1]) // 1024 for line in lines if "VmHWM" in line))
"""


def peak_mb(*arguments: str) -> int:
    command = [sys.executable, "-c", PEAK, recover.__file__, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout.rpartition("PEAK ")[2])


@pytest.mark.slow
def test_consolidating_400_mb_needs_the_memory_of_one_output_file(tmp_path: Path):
    piece = torch.randn(5 * 2**20)
    names = [f"layer.{number}" for number in range(20)]
    save(tmp_path, "t", shards=[TensorShard(n, WEIGHT, (5 * 2**20,), 0, piece) for n in names])
    streamed = peak_mb(str(tmp_path), str(tmp_path / "a"), "--safe_serialization")
    assert streamed < 60
    idle = peak_mb(str(tmp_path), str(tmp_path / "b"), "--max_shard_size", "1KB")
    by_file = peak_mb(str(tmp_path), str(tmp_path / "c"), "--max_shard_size", "100MB")
    assert by_file < idle + 160


def take_state_dicts() -> list[tuple[list[int], int]]:
    engine = engine_over(3, 0)
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("ds_zero.coordinator").addHandler(handler)
    found = []

    def take(**options: bool) -> None:
        state = engine.module.state_dict(**options)
        found.append((sorted({value.numel() for value in state.values()}), len(said)))

    take(keep_vars=True)
    with GatheredParameters(list(engine.module.parameters())):
        take()
    take()
    take()
    (text,) = said
    assert "'first.weight'" in text
    assert "6 parameters" in text
    return found


def test_a_state_dict_without_values_says_so_once():
    for kept, inside, first, second in run_ranks(take_state_dicts, 2):
        assert kept == ([0, 3], 0)
        assert inside == ([3, 9, 15], 0)
        assert first == second == ([0, 3], 1)
