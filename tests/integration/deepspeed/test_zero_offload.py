"""Offload to NVMe while several engines share a folder, only evaluate, or are killed."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import deepspeed
from support.ranks import RankFailure, run_ranks
from support.zero_models import Reference, batch


def start(
    stage: int, folder: str, *, seed: int = 0, optimizer: bool = True, params: bool = True
) -> Any:
    torch.manual_seed(seed)
    place = {"device": "nvme", "nvme_path": folder, "buffer_count": 1}
    zero: dict[str, Any] = {"stage": stage, "sub_group_size": 50}
    zero |= {"offload_optimizer": place} if optimizer else {}
    if stage == 3 and params:
        zero["stage3_param_persistence_threshold"] = 0
        zero["offload_param"] = {**place, "max_in_cpu": 0, "buffer_size": 10}
    config: dict[str, Any] = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": zero}
    if optimizer:
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 0.01}}
    return deepspeed.initialize(model=Reference(), config=config)[0]


def train(engines: list[Any], steps: range) -> list[list[float]]:
    """Losses of each engine; they are stepped in turn."""
    losses: list[list[float]] = [[] for _ in engines]
    for step in steps:
        for engine, found in zip(engines, losses, strict=True):
            loss = engine(*batch(step, 0))
            engine.backward(loss)
            engine.step()
            found.append(loss.item())
    return losses


def left_in(folder: Path) -> list[str]:
    """What lies in a folder of swap files, without the lock that guards it."""
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_two_engines_in_one_folder_train_as_if_alone(stage, tmp_path):
    alone = []
    for seed in (0, 1):
        engine = start(stage, str(tmp_path), seed=seed)
        alone += train([engine], range(3))
        engine.destroy()
    engines = [start(stage, str(tmp_path), seed=seed) for seed in (0, 1)]
    assert train(engines, range(3)) == alone
    for engine in engines:
        engine.destroy()
    assert left_in(tmp_path) == []


def test_a_model_on_nvme_evaluates_though_its_parameters_exceed_the_buffers(tmp_path):
    torch.manual_seed(0)
    expected = Reference()(*batch(0, 0))
    engine = start(3, str(tmp_path), optimizer=False).eval()
    with torch.no_grad():
        assert torch.equal(engine(*batch(0, 0)), expected)
        assert torch.equal(engine(*batch(0, 0)), expected)
    engine.destroy()


def fails_for_want_of_room(stage: int, folder: str, weights: bool) -> list[str]:
    engine = start(stage, folder, params=weights)
    train([engine], range(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    for _ in range(2):
        with pytest.raises(OSError, match=rf"{folder}.*File too large"):
            train([engine], range(1, 2))
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))  # what was lost stays lost
    with pytest.raises(OSError, match="File too large"):
        engine.destroy()
    return left_in(Path(folder))


@pytest.mark.parametrize(("stage", "weights"), [(1, False), (3, False), (3, True)])
def test_a_full_disk_stops_training_for_good_and_leaves_nothing(stage, weights, tmp_path):
    assert run_ranks(fails_for_want_of_room, 1, stage, str(tmp_path), weights) == [[]]


def fails_to_read(stage: int, folder: str, weights: bool) -> set[str]:
    engine = start(stage, folder, params=weights)
    train([engine], range(1))
    for path in Path(folder).glob("*/*.bin"):
        os.truncate(path, 4)
    seen = set()
    for _ in range(3):
        with pytest.raises(OSError, match=rf"{folder}.*[.]bin': file ends too early") as caught:
            train([engine], range(1, 2))
        seen.add(str(caught.value))
    with contextlib.suppress(OSError):  # weights that are to come back are missing, too
        engine.destroy()
    assert left_in(Path(folder)) == []
    return seen


@pytest.mark.parametrize(("stage", "weights"), [(1, False), (3, False), (3, True)])
def test_what_cannot_be_read_says_the_same_at_every_use(stage, weights, tmp_path):
    [seen] = run_ranks(fails_to_read, 1, stage, str(tmp_path), weights)
    assert len(seen) == 1


def is_killed_within_a_step(stage: int, folder: str) -> None:
    engine = start(stage, folder)
    train([engine], range(2))
    engine.save_checkpoint(folder + "/checkpoints")
    owned = engine.strategy.update.owned
    leave, seen = owned.residence.leave, []

    def leave_twice(*args: Any, **kwargs: Any) -> None:
        leave(*args, **kwargs)
        seen.append(1)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    owned.residence.leave = leave_twice
    train([engine], range(2, 3))


def goes_on(stage: int, folder: str) -> list[float]:
    engine = start(stage, folder, seed=1)
    engine.load_checkpoint(folder + "/checkpoints")
    [losses] = train([engine], range(2, 4))
    engine.destroy()
    return losses


@pytest.mark.parametrize("stage", [1, 3])
def test_a_kill_within_a_step_leaves_the_last_checkpoint_whole(stage, tmp_path):
    engine = start(stage, str(tmp_path))
    [expected] = train([engine], range(4))
    engine.destroy()
    with pytest.raises(RankFailure, match="died without a word"):
        run_ranks(is_killed_within_a_step, 1, stage, str(tmp_path))
    assert run_ranks(goes_on, 1, stage, str(tmp_path)) == [expected[2:]]
    assert left_in(tmp_path) == ["checkpoints"]
