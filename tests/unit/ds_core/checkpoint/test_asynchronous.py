"""Training goes on while a checkpoint is written."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from ds_core.checkpoint import AsyncSaver, open_checkpoint
from ds_core.contracts.shard import WEIGHT, TensorShard
from ds_core.errors import CheckpointError, ConfigError, StateError


def shards(tensor, name="w"):
    return [TensorShard(name, WEIGHT, tuple(tensor.shape), 0, tensor.view(-1))]


def test_the_state_at_the_call_is_what_is_saved(tmp_path):
    tensor, counter, gate = torch.zeros(1000), torch.zeros(1), threading.Event()
    with AsyncSaver() as saver:
        saver.save(
            tmp_path,
            "t",
            shards=shards(tensor),
            client_state={"counter": counter},
            progress=lambda _: gate.wait(10),
        )
        tensor.fill_(1)
        counter.fill_(1)
        assert not saver.done()
        gate.set()
        assert saver.wait() == tmp_path / "t"
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.reader.whole("w", WEIGHT).sum() == 0
        assert checkpoint.client_state()["counter"] == 0


def test_saves_follow_one_another_and_reuse_their_copies(tmp_path):
    tensor = torch.zeros(1000)
    with AsyncSaver() as saver:
        for step in range(4):
            saver.save(tmp_path, f"t{step}", shards=shards(tensor.fill_(step)))
    for step in range(4):
        with open_checkpoint(tmp_path, f"t{step}") as checkpoint:
            assert checkpoint.reader.whole("w", WEIGHT).unique().tolist() == [step]
    assert (tmp_path / "latest").read_text() == "t3"


@pytest.mark.parametrize("call", ["wait", "close", "save"])
def test_an_error_of_the_background_is_raised_by_the_next_call(tmp_path, call):
    def fail(_):
        raise OSError(28, "No space left on device")

    saver = AsyncSaver()
    arguments = {"wait": (), "close": (), "save": (tmp_path, "u")}[call]
    keywords = {"shards": []} if call == "save" else {}
    saver.save(tmp_path, "t", shards=shards(torch.ones(3)), progress=fail)
    with pytest.raises(CheckpointError, match="No space left"):
        getattr(saver, call)(*arguments, **keywords)
    assert os.listdir(tmp_path) == []
    assert saver.wait() is None
    saver.close()


def test_an_error_in_the_shards_is_raised_by_the_next_call(tmp_path):
    def broken():
        yield from shards(torch.ones(3))
        raise RuntimeError("no such shard")

    saver = AsyncSaver()
    saver.save(tmp_path, "t", shards=broken())
    with pytest.raises(RuntimeError, match="no such shard"):
        saver.wait()
    assert os.listdir(tmp_path) == []


def test_a_state_that_cannot_be_saved_is_refused_at_once(tmp_path):
    with AsyncSaver() as saver, pytest.raises(ConfigError, match=r"client_state\['x'\]"):
        saver.save(tmp_path, "t", shards=[], client_state={"x": object()})


def test_a_closed_saver_refuses(tmp_path):
    saver = AsyncSaver()
    saver.close()
    saver.close()
    with pytest.raises(StateError, match="closed"):
        saver.save(tmp_path, "t", shards=[])


def test_ranks_publish_when_the_last_one_has_written(tmp_path, as_ranks):
    gate = threading.Event()

    def write(comm):
        hold = None if comm.rank == 0 else lambda _: gate.wait(10)
        saver = AsyncSaver(comm=comm)
        saver.save(tmp_path, "t", shards=shards(torch.ones(3), f"w{comm.rank}"), progress=hold)
        if comm.rank == 0:
            assert not (tmp_path / "t").exists()
            gate.set()
        return saver.wait()

    assert as_ranks(3, write) == [tmp_path / "t"] * 3
    with open_checkpoint(tmp_path) as checkpoint:
        assert sorted(checkpoint.reader.names()) == ["w0", "w1", "w2"]


@pytest.mark.parametrize("bad", [0, 1])
def test_a_rank_that_fails_in_the_background_fails_all(tmp_path, as_ranks, bad):
    def fail(_):
        raise OSError(28, "No space left on device")

    def write(comm):
        progress = fail if comm.rank == bad else None
        saver = AsyncSaver(comm=comm)
        saver.save(tmp_path, "t", shards=shards(torch.ones(3), f"w{comm.rank}"), progress=progress)
        return saver.wait()

    for error in as_ranks(2, write):
        with pytest.raises(CheckpointError, match="No space left"):
            raise error
    assert os.listdir(tmp_path) == []


def test_rank_0_does_not_wait_for_ever(tmp_path, as_ranks):
    gate = threading.Event()

    def write(comm):
        hold = None if comm.rank == 0 else lambda _: gate.wait(10)
        saver = AsyncSaver(comm=comm, timeout=0.1)
        saver.save(tmp_path, "t", shards=shards(torch.ones(3), f"w{comm.rank}"), progress=hold)
        if comm.rank == 0:
            while not saver.done():
                threading.Event().wait(0.01)
            gate.set()
        return saver.wait()

    for error in as_ranks(2, write):
        with pytest.raises(CheckpointError, match=r"ranks \[1\] have not written"):
            raise error
