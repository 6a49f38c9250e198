"""What goes into a checkpoint comes out of it, whatever the layout."""

from __future__ import annotations

import json
import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from ds_core.checkpoint import open_checkpoint, save, tags
from ds_core.contracts.shard import BUFFER, WEIGHT, TensorShard
from ds_core.errors import CheckpointError, ConfigError, RankMismatchError

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz),
    *(torch.int64, torch.int32, torch.int16, torch.int8),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool),
    *(torch.complex64, torch.complex128),
]


def filled(shape, dtype=torch.float32, seed=0):
    numel = torch.Size(shape).numel()
    width = 1 if dtype == torch.bool else dtype.itemsize
    top = 2 if dtype == torch.bool else 256
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, top, (numel * width,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).view(shape) if numel else torch.empty(shape, dtype=dtype)


def shard(name, tensor, slot=WEIGHT, start=0, stop=None, **facts):
    piece = tensor.reshape(-1)[start : tensor.numel() if stop is None else stop]
    return TensorShard(name, slot, tuple(tensor.shape), start, piece, **facts)


def same_bits(a, b):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    assert torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (7, 3), (0, 4)], ids=str)
def test_every_dtype_and_shape_comes_back_bit_for_bit(tmp_path, dtype, shape):
    tensor = filled(shape, dtype)
    save(tmp_path, "a", shards=[shard("odd", filled((3,), torch.uint8)), shard("w", tensor)])
    with open_checkpoint(tmp_path) as checkpoint:
        same_bits(checkpoint.reader.whole("w", WEIGHT), tensor)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_layout_is_read_by_any_other(tmp_path_factory, as_ranks, data):
    numel = data.draw(st.integers(0, 40))
    dtype = data.draw(st.sampled_from([torch.bfloat16, torch.float32, torch.bool]))
    writers = data.draw(st.integers(1, 4))
    cuts = sorted(data.draw(st.lists(st.integers(0, numel), max_size=6)))
    bounds = list(zip([0, *cuts], [*cuts, numel], strict=True))
    owners = [data.draw(st.integers(0, writers - 1)) for _ in bounds]
    tensor, folder = filled((numel,), dtype), tmp_path_factory.mktemp("any")

    def write(comm):
        mine = [b for b, owner in zip(bounds, owners, strict=True) if owner == comm.rank]
        shards = [shard("w", tensor, start=a, stop=b) for a, b in mine]
        return save(folder, "t", shards=data_free(shards, comm.rank), comm=comm)

    assert as_ranks(writers, write) == [folder / "t"] * writers
    start = data.draw(st.integers(0, numel))
    stop = data.draw(st.integers(start, numel))
    with open_checkpoint(folder) as checkpoint:
        out = torch.empty(stop - start, dtype=dtype)
        checkpoint.reader.read("w", WEIGHT, start, out)
    same_bits(out, tensor[start:stop])


def data_free(shards, rank):
    """A list on even ranks, a generator on odd ones."""
    return shards if rank % 2 == 0 else (one for one in shards)


def test_twelve_ranks_and_101_layers_keep_numeric_order(tmp_path, as_ranks):
    layers = {f"layer_{i}": torch.arange(24.0) + 100 * i for i in range(101)}

    def write(comm):
        cut = slice(2 * comm.rank, 2 * comm.rank + 2)
        pieces = [shard(n, t, start=cut.start, stop=cut.stop) for n, t in layers.items()]
        return save(tmp_path, "t", shards=pieces, comm=comm)

    as_ranks(12, write)
    with open_checkpoint(tmp_path) as checkpoint:
        assert list(checkpoint.reader.names()) == list(layers)
        for name, tensor in layers.items():
            same_bits(checkpoint.reader.whole(name, WEIGHT), tensor)


def test_read_converts_to_the_dtype_asked_for(tmp_path):
    save(tmp_path, "a", shards=[shard("w", torch.arange(10, dtype=torch.bfloat16))])
    out = torch.empty(4)
    with open_checkpoint(tmp_path) as checkpoint:
        checkpoint.reader.read("w", WEIGHT, 3, out)
    assert out.tolist() == [3.0, 4.0, 5.0, 6.0]


def test_weights_file_of_one_rank_is_an_ordinary_state_dict(tmp_path):
    weight, moment = filled((4, 5)), filled((4, 5), seed=1)
    shards = [shard("w", weight), shard("w", moment, "exp_avg"), shard("n", weight, BUFFER)]
    path = save(tmp_path, "a", shards=shards)
    loaded = load_file(path / "weights.rank00000.safetensors")
    assert set(loaded) == {"w", "n"}
    same_bits(loaded["w"], weight)
    assert set(load_file(path / "states.rank00000.safetensors")) == {"w/exp_avg"}


def test_shards_that_come_one_by_one_fill_further_files(tmp_path):
    stream = (shard(f"block.{i}.weight", torch.full((2,), float(i))) for i in range(3000))
    path = save(tmp_path, "a", shards=stream)
    files = sorted(entry.name for entry in path.glob("weights*"))
    assert len(files) > 1
    assert sum(len(load_file(path / name)) for name in files) == 3000
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.reader.whole("block.2999.weight", WEIGHT).tolist() == [2999.0, 2999.0]


def test_another_writer_of_tensor_files_can_be_passed_in(tmp_path):
    tensor, written = filled((5, 3)), []

    def writer(path, tensors):
        save_file(dict(tensors), path)
        written.append(path.name)

    shards = [shard("b", filled((3,), torch.bool)), shard("w", tensor)]
    save(tmp_path, "a", shards=shards, tensor_writer=writer)
    with open_checkpoint(tmp_path) as checkpoint:
        same_bits(checkpoint.reader.whole("w", WEIGHT), tensor)
    assert written == ["weights.rank00000.safetensors"]


def test_ties_are_found_under_each_name(tmp_path):
    tied = shard("embed", torch.ones(3), aliases=("head", "third"), frozen=True)
    save(tmp_path, "a", shards=[tied])
    with open_checkpoint(tmp_path) as checkpoint:
        reader = checkpoint.reader
        assert list(reader.names()) == ["embed"]
        assert reader.slots("head") == {WEIGHT}
        assert reader.shape("third", WEIGHT) == (3,)
        assert reader.aliases("third") == ("embed", "head", "third")
        assert reader.frozen("head")
        assert reader.slots("nobody") == frozenset()
        with pytest.raises(CheckpointError, match="no tensor 'nobody'"):
            reader.shape("nobody", WEIGHT)
        with pytest.raises(CheckpointError, match="no 'exp_avg' of 'head'"):
            reader.dtype("head", "exp_avg")


def test_reading_beyond_the_end_is_refused(tmp_path):
    save(tmp_path, "a", shards=[shard("w", torch.ones(3))])
    with (
        open_checkpoint(tmp_path) as checkpoint,
        pytest.raises(CheckpointError, match="has 3 elements; 2 to 3"),
    ):
        checkpoint.reader.read("w", WEIGHT, 2, torch.empty(2))


def test_states_and_rank_states_come_back(tmp_path, as_ranks):
    def write(comm):
        shards = [shard("w", torch.ones(2))] if comm.rank == 0 else []
        rng = {"rng": torch.get_rng_state(), "rank": comm.rank}
        state, client = {"step": comm.rank}, {"epoch": (comm.rank, 2)}
        arguments = {"state": state, "client_state": client, "rank_state": rng}
        return save(tmp_path, "t", shards=shards, comm=comm, **arguments)

    as_ranks(2, write)

    def read(comm):
        with open_checkpoint(tmp_path, comm=comm) as checkpoint:
            assert checkpoint.state == {"step": 0}
            assert checkpoint.client_state() == {"epoch": (0, 2)}
            found = checkpoint.rank_state(comm.rank)
            assert torch.equal(found["rng"], torch.get_rng_state())
            return found["rank"]

    assert as_ranks(2, read) == [0, 1]
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.rank_state(1) is None
        assert checkpoint.rank_state(1, world_size=2)["rank"] == 1


@pytest.mark.parametrize(
    ("content", "fault"),
    [(b"", "is damaged .*is empty"), (b"../../up", "is damaged"), (b"\xff", "cannot be read")],
)
def test_a_damaged_latest_is_named_with_the_checkpoints_beside_it(tmp_path, content, fault):
    save(tmp_path, "a", shards=[])
    (tmp_path / "latest").write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"latest {fault}.*pass a tag .*there: a\)"):
        open_checkpoint(tmp_path)


def test_a_client_state_that_is_no_dict_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="client_state is of type list; give a dict"):
        save(tmp_path, "a", shards=[], client_state=[1])


def test_latest_names_the_last_save_unless_told_otherwise(tmp_path):
    for i, latest in enumerate([True, True, False]):
        save(tmp_path, f"step{i}", shards=[], state={"i": i}, save_latest=latest)
    assert (tmp_path / "latest").read_text() == "step1"
    with open_checkpoint(tmp_path) as checkpoint:
        assert (checkpoint.tag, checkpoint.state) == ("step1", {"i": 1})
    with open_checkpoint(tmp_path, "step2") as checkpoint:
        assert checkpoint.state == {"i": 2}
    assert tags(tmp_path) == ["step0", "step1", "step2"]


def test_saving_a_tag_again_replaces_it_and_keeps_foreign_files(tmp_path):
    save(tmp_path, "a", shards=[shard("old", torch.ones(2))])
    (tmp_path / "a" / "notes.txt").write_text("mine")
    save(tmp_path, "a", shards=[shard("new", torch.ones(2))])
    with open_checkpoint(tmp_path) as checkpoint:
        assert list(checkpoint.reader.names()) == ["new"]
    assert (tmp_path / "a" / "notes.txt").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == ["a", "latest"]


@pytest.mark.parametrize(
    "tag", ["", ".", "..", ".a", "a/b", "a\\b", "/a", "latest", "a\n", "x" * 200]
)
def test_a_tag_that_is_no_folder_name_is_refused(tmp_path, tag):
    with pytest.raises(ConfigError, match="checkpoint tag"):
        save(tmp_path, tag, shards=[])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([(0, 2), (3, 5)], r"'w' \(weight\): elements 2 to 2 of 5 are in no piece"),
        ([(0, 3), (2, 5)], "elements 2 to 2 of 5 are in two pieces"),
        ([(0, 4)], "elements 4 to 4 of 5 are in no piece"),
        ([(1, 5)], "elements 0 to 0 of 5"),
        ([], None),
    ],
)
def test_each_element_must_be_saved_exactly_once(tmp_path, as_ranks, pieces, message):
    def write(comm):
        mine = pieces[comm.rank :: 2]
        return save(
            tmp_path,
            "t",
            shards=[shard("w", torch.ones(5), start=a, stop=b) for a, b in mine],
            comm=comm,
        )

    results = as_ranks(2, write)
    if message is None:
        assert results == [tmp_path / "t"] * 2
    else:
        for error in results:
            with pytest.raises(CheckpointError, match=message):
                raise error
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": (4, 1)}, r"shape is \(2, 2\) on rank 0 and \(4, 1\) on rank 1"),
        ({"dtype": torch.float16}, "dtype is float32 on rank 0 and float16 on rank 1"),
        ({"aliases": ("head",)}, r"aliases is \(\) on rank 0"),
        ({"frozen": True}, "frozen is False on rank 0"),
        ({"tag": "other"}, "different tag .*rank 0: 't', rank 1: 'other'"),
        ({"directory": "sub"}, "different directory"),
        ({"name": "v", "aliases": ("w",)}, "'w' belongs to parameter 'w' on rank 0 and to 'v'"),
    ],
)
def test_ranks_that_disagree_are_told_apart(tmp_path, as_ranks, change, message):
    def write(comm):
        mine = change if comm.rank else {}
        tensor = torch.ones(mine.get("shape", (2, 2)), dtype=mine.get("dtype", torch.float32))
        facts = {k: mine[k] for k in ("aliases", "frozen") if k in mine}
        at = {"start": 2 * comm.rank, "stop": 2 * comm.rank + 2}
        piece = shard(mine.get("name", "w"), tensor, **at, **facts)
        folder = tmp_path / mine.get("directory", ".")
        return save(folder, mine.get("tag", "t"), shards=[piece], comm=comm)

    for error in as_ranks(2, write):
        with pytest.raises(RankMismatchError, match=message):
            raise error
    assert tags(tmp_path) == []


def test_a_rank_that_fails_makes_every_rank_raise(tmp_path, as_ranks):
    save(tmp_path, "t", shards=[], state={"good": True})

    def write(comm):
        def shards():
            yield shard(f"w{comm.rank}", torch.ones(3))
            if comm.rank == 1:
                raise OSError(28, "No space left on device")

        return save(tmp_path, "t", shards=shards(), comm=comm)

    results = as_ranks(3, write)
    assert [type(result) for result in results] == [CheckpointError] * 3
    assert "failed on rank 1: OSError: [Errno 28]" in str(results[2])
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.state == {"good": True}
    assert sorted(os.listdir(tmp_path)) == ["latest", "t"]


def test_ranks_that_load_different_tags_are_told(tmp_path, as_ranks):
    save(tmp_path, "a", shards=[])
    errors = as_ranks(2, lambda comm: open_checkpoint(tmp_path, "ab"[comm.rank], comm=comm))
    for error in errors:
        with pytest.raises(RankMismatchError, match="rank 0: 'a', rank 1: 'b'"):
            raise error


def test_a_missing_checkpoint_is_answered_with_those_there(tmp_path):
    with pytest.raises(CheckpointError, match=r"latest is missing: pass a tag .*none"):
        open_checkpoint(tmp_path)
    save(tmp_path, "a", shards=[], save_latest=False)
    with pytest.raises(CheckpointError, match=r"pass a tag \(checkpoints there: a\)"):
        open_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"no checkpoint 'b' in .*: a"):
        open_checkpoint(tmp_path, "b")


def test_a_folder_without_manifest_is_no_checkpoint(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(CheckpointError, match=r"manifest\.json is missing"):
        open_checkpoint(tmp_path, "a")


def test_leftovers_of_a_killed_save_go_and_those_of_a_living_one_stay(tmp_path):
    dead = tmp_path / ".saving.old.0123456789ab"
    dead.mkdir()
    (dead / "weights.rank00000.safetensors").write_bytes(b"x")

    def shards():
        save(tmp_path, "inner", shards=[])
        yield shard("w", torch.ones(1))

    save(tmp_path, "outer", shards=shards())
    assert sorted(os.listdir(tmp_path)) == ["inner", "latest", "outer"]


def test_progress_counts_every_byte(tmp_path):
    seen = []
    save(tmp_path, "a", shards=[shard("w", torch.ones(1000))], progress=seen.append)
    assert sum(seen) == 4000


def test_manifest_tells_what_is_there(tmp_path):
    save(tmp_path, "a", shards=[shard("w", torch.ones(2, 3), aliases=("v",), frozen=True)])
    body = json.loads((tmp_path / "a" / "manifest.json").read_text())
    assert body["world_size"] == 1
    assert set(body["versions"]) == {"ds_core", "torch", "python"}
    (row,) = body["tensors"]
    assert (row["name"], row["shape"], row["aliases"], row["frozen"]) == ("w", [2, 3], ["v"], True)
