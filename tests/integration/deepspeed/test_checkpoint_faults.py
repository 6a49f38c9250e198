"""A checkpoint that cannot be written fails on all ranks, and harms nothing that is there."""

from __future__ import annotations

import errno
import os
import resource
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn

import deepspeed
from ds_core.errors import CheckpointError, StateError
from support.ranks import run_ranks

CONFIG = {
    "train_micro_batch_size_per_gpu": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
}
NO_FOLDER = "/sys/checkpoints"  # nobody, not even root, makes a folder there


def make_engine(stage, **sections):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
    config = {**CONFIG, "zero_optimization": {"stage": stage}, **sections}
    return deepspeed.initialize(model=net, config=config)[0]


def step(engine):
    generator = torch.Generator().manual_seed(engine.global_steps)
    loss = engine(torch.randn(2, 64, generator=generator)).square().mean()
    engine.backward(loss)
    engine.step()
    return loss.item()


def fill_the_disk(size):
    """From here on no file of this process grows beyond `size` bytes."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))


def save_and_wait(engine, folder):
    engine.save_checkpoint(folder)
    engine.wait_for_checkpoint()


def save_into_nowhere(stage, sections):
    engine = make_engine(stage, **sections)
    step(engine)
    with pytest.raises(CheckpointError, match=NO_FOLDER):
        save_and_wait(engine, NO_FOLDER)
    with pytest.raises(CheckpointError, match=r"saving the model to .* failed"):
        engine.save_16bit_model(NO_FOLDER)
    return step(engine)


@pytest.mark.parametrize("sections", [{}, {"checkpoint": {"writer": {"decoupled": True}}}])
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_folder_that_cannot_be_made_is_named_and_training_goes_on(stage, sections):
    first, second = run_ranks(save_into_nowhere, 2, stage, sections)
    assert first == second


def save_onto_a_full_disk(folder, stage, full_rank):
    engine = make_engine(stage)
    step(engine)
    engine.save_checkpoint(folder)
    expected = step(engine)
    if dist.get_rank() == full_rank:
        fill_the_disk(2000)
    with pytest.raises(CheckpointError) as caught:
        engine.save_checkpoint(folder)
    again = make_engine(stage)
    path, _ = again.load_checkpoint(folder)
    return str(caught.value), path, step(again) == expected


@pytest.mark.parametrize("full_rank", [0, 1])
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_a_full_disk_of_one_rank_leaves_the_earlier_checkpoint(stage, full_rank, tmp_path):
    answers = run_ranks(save_onto_a_full_disk, 2, str(tmp_path), stage, full_rank)
    for rank, (message, path, same) in enumerate(answers):
        assert f"failed on rank {full_rank}" in message or rank == full_rank
        assert "File too large" in message
        assert str(tmp_path / "global_step2") in message
        assert path == str(tmp_path / "global_step1")
        assert same


def save_in_the_background_onto_a_full_disk(folder):
    engine = make_engine(0, checkpoint={"writer": {"decoupled": True}})
    step(engine)
    crashes = []
    threading.excepthook = crashes.append
    if dist.get_rank() == 1:
        fill_the_disk(0)
    with pytest.raises(CheckpointError, match=folder):
        save_and_wait(engine, folder)
    return crashes, step(engine)


def test_a_disk_too_full_for_a_note_ends_a_background_save_too(tmp_path):
    first, second = run_ranks(save_in_the_background_onto_a_full_disk, 2, str(tmp_path))
    assert first[0] == second[0] == []
    assert first[1] == second[1]


def save_the_model_twice(folder):
    engine = make_engine(0)
    engine.save_16bit_model(folder)
    fill_the_disk(2000)
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin cannot be written"):
        engine.save_16bit_model(folder)
    return sorted(torch.load(f"{folder}/pytorch_model.bin"))


def test_a_model_that_cannot_be_saved_leaves_the_earlier_one(tmp_path):
    assert len(run_ranks(save_the_model_twice, 1, str(tmp_path))[0]) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["pytorch_model.bin"]


def save_without_room_for_the_script(folder):
    def full(save_path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), save_path)

    engine = make_engine(2)
    step(engine)
    engine._copy_recovery_script = full
    with pytest.raises(CheckpointError, match=f"putting zero_to_fp32.py into {folder} failed"):
        engine.save_checkpoint(folder)
    return step(engine)


def test_all_ranks_hear_that_the_recovery_script_found_no_room(tmp_path):
    first, second = run_ranks(save_without_room_for_the_script, 2, str(tmp_path))
    assert first == second


def small_engine(stage, kind="AdamW"):
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": kind, "params": {"lr": 0.01}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    torch.manual_seed(0)
    engine = deepspeed.initialize(model=torch.nn.Linear(4, 1), config=config)[0]
    engine.backward(engine(torch.ones(2, 4)).square().mean())
    engine.step()
    return engine


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_destroyed_engine_neither_saves_nor_loads_what_it_no_longer_holds(stage, tmp_path):
    engine = small_engine(stage)
    engine.save_checkpoint(tmp_path, tag="whole")
    engine.destroy()
    for use in (engine.save_checkpoint, engine.load_checkpoint, engine.save_16bit_model):
        with pytest.raises(StateError, match="destroyed"):
            use(tmp_path)
    assert (tmp_path / "latest").read_text() == "whole"


@pytest.mark.parametrize("kind", ["SGD", "Adagrad"])
@pytest.mark.parametrize("stage", [0, 3])
def test_moments_of_another_kind_of_optimizer_are_refused_and_can_be_left_out(
    stage, kind, tmp_path
):
    adam = small_engine(stage)
    adam.save_checkpoint(tmp_path)
    adam.destroy()
    other = small_engine(stage, kind)
    with pytest.raises(CheckpointError, match=r"betas there.*load_optimizer_states=False"):
        other.load_checkpoint(tmp_path)
    other.load_checkpoint(tmp_path, load_optimizer_states=False)
    other.backward(other(torch.ones(2, 4)).square().mean())
    other.step()
