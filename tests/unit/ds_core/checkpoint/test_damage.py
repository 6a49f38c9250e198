"""A damaged checkpoint is an error that names the damage, before anything is used."""

from __future__ import annotations

import json
import os
import random
import re

import pytest
import torch

from ds_core.checkpoint import open_checkpoint, save
from ds_core.checkpoint.manifest import read_manifest
from ds_core.contracts.shard import WEIGHT, TensorShard
from ds_core.errors import CheckpointError


@pytest.fixture
def saved(tmp_path):
    shards = [
        TensorShard(name, slot, (50,), 0, torch.arange(50.0))
        for name in ("a", "b")
        for slot in (WEIGHT, "exp_avg")
    ]
    extra = {"t": torch.ones(3), "epoch": 4}
    states = {"state": {"step": 1}, "client_state": extra, "rank_state": {"seed": 1}}
    return save(tmp_path, "t", shards=shards, **states)


def flip(path, position):
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def test_any_flipped_byte_of_any_file_is_found_and_its_file_named(saved):
    random.seed(0)
    for name in sorted(os.listdir(saved)):
        path, content = saved / name, (saved / name).read_bytes()
        for position in {0, len(content) - 1, *random.choices(range(len(content)), k=25)}:
            flip(path, position)
            with pytest.raises(CheckpointError, match=re.escape(name)):
                open_checkpoint(saved.parent)
            path.write_bytes(content)
    open_checkpoint(saved.parent).close()


def test_a_flipped_byte_in_a_tensor_names_the_tensor(saved):
    manifest = read_manifest(saved)
    piece = next(t for t in manifest.tensors if (t.name, t.slot) == ("b", "exp_avg")).pieces[0]
    flip(saved / piece.file, piece.offset + 17)
    with pytest.raises(CheckpointError, match=r"states\.rank00000\.safetensors: 'b' \(exp_avg\)"):
        open_checkpoint(saved.parent)


def test_each_missing_file_is_named_even_without_verification(saved):
    for name in sorted(os.listdir(saved)):
        aside = saved.parent / "aside"
        os.rename(saved / name, aside)
        with pytest.raises(CheckpointError, match=re.escape(name)):
            open_checkpoint(saved.parent, verify=False)
        os.rename(aside, saved / name)


def test_all_faults_are_told_at_once(saved):
    (saved / "weights.rank00000.safetensors").unlink()
    with open(saved / "state.json", "ab") as file:
        file.write(b" ")
    with pytest.raises(CheckpointError, match=r"weights\S+ is missing; state.json has \d+ bytes"):
        open_checkpoint(saved.parent)


def test_damage_seen_by_one_rank_is_raised_on_all(saved, as_ranks):
    flip(saved / "weights.rank00000.safetensors", -1)
    for error in as_ranks(3, lambda comm: open_checkpoint(saved.parent, comm=comm)):
        with pytest.raises(CheckpointError, match=r"'b' \(weight\)"):
            raise error


def test_a_file_that_shrinks_while_open_is_an_error(saved):
    with open_checkpoint(saved.parent) as checkpoint:
        os.truncate(saved / "weights.rank00000.safetensors", 100)
        with pytest.raises(CheckpointError, match="ends at byte"):
            checkpoint.reader.whole("a", WEIGHT)


def test_a_manifest_of_another_format_or_version_is_refused(saved):
    path = saved / "manifest.json"
    body = json.loads(path.read_bytes())
    path.write_text(json.dumps(body | {"format_version": 99}))
    with pytest.raises(CheckpointError, match="format version 99"):
        open_checkpoint(saved.parent)
    path.write_text("[]")
    with pytest.raises(CheckpointError, match="not the manifest"):
        open_checkpoint(saved.parent)


def test_nothing_of_ours_is_a_pickle(saved):
    for name in os.listdir(saved):
        assert name.endswith((".json", ".safetensors"))


def test_a_foreign_pickle_beside_our_files_is_never_opened(saved, tmp_path):
    marker = tmp_path / "ran"
    payload = f"cposix\nsystem\n(S'touch {marker}'\ntR.".encode()
    for name in sorted(os.listdir(saved)):
        content = (saved / name).read_bytes()
        (saved / name).write_bytes(payload.ljust(len(content), b" ")[: len(content)])
        with pytest.raises(CheckpointError):
            open_checkpoint(saved.parent)
        (saved / name).write_bytes(content)
    assert not marker.exists()
