"""Checkpoints of real ranks: written by some number, read by another."""

from __future__ import annotations

import torch

from ds_core.checkpoint import AsyncSaver, GroupRanks, open_checkpoint, save
from ds_core.contracts.shard import WEIGHT, TensorShard
from ds_core.errors import CheckpointError
from support.ranks import run_ranks

NUMEL = 1000


def pieces(rank, world_size):
    whole = torch.arange(float(NUMEL))
    cuts = [NUMEL * i // world_size for i in range(world_size + 1)]
    start, stop = cuts[rank], cuts[rank + 1]
    return start, TensorShard("w", WEIGHT, (10, 100), start, whole[start:stop])


def write(folder, asynchronous):
    comm = GroupRanks()
    shards = [pieces(comm.rank, comm.world_size)[1]]
    states = {"state": {"step": 3}, "rank_state": {"rng": torch.get_rng_state()}}
    if not asynchronous:
        return str(save(folder, "t", shards=shards, comm=comm, **states))
    with AsyncSaver(comm=comm) as saver:
        saver.save(folder, "t", shards=shards, **states)
        torch.distributed.all_reduce(torch.ones(1))
        return str(saver.wait())


def read(folder):
    comm = GroupRanks()
    with open_checkpoint(folder, comm=comm) as checkpoint:
        start, shard = pieces(comm.rank, comm.world_size)
        out = torch.empty_like(shard.piece)
        checkpoint.reader.read("w", WEIGHT, start, out)
        same = torch.equal(out, shard.piece)
        return same, checkpoint.state["step"], checkpoint.rank_state(comm.rank) is not None


def test_two_ranks_write_and_one_two_and_three_read(tmp_path):
    assert run_ranks(write, 2, tmp_path, False) == [str(tmp_path / "t")] * 2
    assert run_ranks(read, 1, tmp_path) == [(True, 3, False)]
    assert run_ranks(read, 2, tmp_path) == [(True, 3, True)] * 2
    assert run_ranks(read, 3, tmp_path) == [(True, 3, False)] * 3


def test_a_background_save_leaves_collectives_to_training(tmp_path):
    assert run_ranks(write, 2, tmp_path, True) == [str(tmp_path / "t")] * 2
    assert run_ranks(read, 2, tmp_path) == [(True, 3, True)] * 2


def write_badly(folder):
    comm = GroupRanks()
    stream = iter([1]) if comm.rank else [pieces(comm.rank, comm.world_size)[1]]
    try:
        save(folder, "t", shards=stream, comm=comm)
    except (CheckpointError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return "saved"


def test_a_fault_of_one_rank_ends_the_save_on_both(tmp_path):
    first, second = run_ranks(write_badly, 2, tmp_path)
    assert "failed on rank 1: AttributeError" in first
    assert second.startswith("AttributeError")
