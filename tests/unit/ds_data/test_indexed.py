"""The .bin/.idx format: what goes in comes out, byte for byte as its other writers have it."""

import os
import pickle
import struct
import tempfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_data import (
    FormatError,
    MMapIndexedDataset,
    MMapIndexedDatasetBuilder,
    RuleError,
    best_dtype,
)
from ds_data.indexed_lists import IndexedDataset, IndexedDatasetBuilder

DEEPSPEED = ["uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"]
MEGATRON = ["uint8", "int8", "int16", "int32", "int64", "float64", "float32", "uint16"]


def build(path, items, dtype, dialect="deepspeed"):
    with MMapIndexedDatasetBuilder(f"{path}.bin", dtype, dialect=dialect) as builder:
        for item in items:
            builder.add_item(item)
            builder.end_document()


@pytest.mark.parametrize(
    ("dialect", "dtype"),
    [("deepspeed", name) for name in DEEPSPEED] + [("megatron", name) for name in MEGATRON],
)
def test_every_type_round_trips(tmp_path, dialect, dtype):
    kind = np.dtype(dtype).kind
    bounds = np.finfo(dtype) if kind == "f" else np.iinfo(dtype)
    items = [np.array(values, dtype) for values in ([bounds.max, 1], [], [bounds.min])]
    build(tmp_path / "d", items, dtype, dialect)
    dataset = MMapIndexedDataset(tmp_path / "d", dialect=dialect)
    assert dataset.dtype == dtype
    assert [item.tolist() for item in dataset] == [item.tolist() for item in items]


@pytest.mark.parametrize("dtype", ["float64", "uint16"])
def test_the_other_dialect_is_recognised_by_the_width_of_items(tmp_path, dtype):
    build(tmp_path / "d", [np.arange(3, dtype=dtype)], dtype, "megatron")
    assert MMapIndexedDataset(tmp_path / "d").dtype == dtype


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.integers(0, 65535), max_size=5), max_size=20))
def test_items_of_any_length_round_trip(items):
    folder = tempfile.mkdtemp()
    build(f"{folder}/d", [np.array(item, np.int64) for item in items], np.uint16)
    dataset = MMapIndexedDataset(f"{folder}/d")
    assert [item.tolist() for item in dataset] == items
    assert dataset.doc_idx.tolist() == list(range(len(items) + 1))


def test_bytes_are_those_of_the_format(tmp_path):
    """Layout from a file another library wrote: [1, 2], [] | [7], int32."""
    with MMapIndexedDatasetBuilder(tmp_path / "d.bin", np.int32) as builder:
        builder.add_item(torch.tensor([1, 2]))
        builder.add_item(torch.tensor([], dtype=torch.int64))
        builder.end_document()
        builder.add_items([np.array([7])])
        builder.end_document()
    expected = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, 3, 3)
    expected += struct.pack("<3i3q3q", 2, 0, 1, 0, 8, 8, 0, 2, 3)
    assert (tmp_path / "d.idx").read_bytes() == expected
    assert (tmp_path / "d.bin").read_bytes() == struct.pack("<3i", 1, 2, 7)


@pytest.mark.parametrize("vocab_size", [100, 65499, 65500, 65536, 70000])
def test_the_type_picked_for_a_vocabulary_can_be_built(tmp_path, vocab_size):
    items = [np.array([0, vocab_size - 1], np.int64)]
    build(tmp_path / "d", items, best_dtype(vocab_size))
    assert MMapIndexedDataset(tmp_path / "d")[0].tolist() == [0, vocab_size - 1]


@pytest.mark.parametrize(
    ("value", "source", "dtype"),
    [
        (256, "int64", "uint8"),
        (-1, "int64", "uint64"),
        (2**63, "uint64", "int64"),
        (1.5, "float32", "int32"),
        (float("nan"), "float32", "int32"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(tmp_path, value, source, dtype):
    builder = MMapIndexedDatasetBuilder(tmp_path / "d.bin", dtype)
    with pytest.raises(RuleError, match=f"does not fit in {dtype}"):
        builder.add_item(np.array([1, value], source))
    builder.close()


@pytest.mark.parametrize("dtype", ["float16", "complex64", "float32"])
def test_a_type_the_format_lacks_is_refused(tmp_path, dtype):
    with pytest.raises(RuleError, match="it has uint8, int8"):
        MMapIndexedDatasetBuilder(tmp_path / "d.bin", dtype)


def test_an_error_leaves_no_file_behind(tmp_path):
    with pytest.raises(ZeroDivisionError), MMapIndexedDatasetBuilder(tmp_path / "d.bin"):
        _ = 1 / 0
    assert os.listdir(tmp_path) == []


def test_an_unfinished_build_leaves_the_old_pair(tmp_path):
    build(tmp_path / "d", [np.array([1])], np.int64)
    builder = MMapIndexedDatasetBuilder(tmp_path / "d.bin", np.int64)
    builder.add_item(np.array([2]))
    assert MMapIndexedDataset(tmp_path / "d")[0].tolist() == [1]
    builder.close()


def test_merge_appends_items_and_documents(tmp_path):
    build(tmp_path / "a", [np.array([1, 2]), np.array([3])], np.int32)
    build(tmp_path / "b", [np.array([4])], np.int32)
    with MMapIndexedDatasetBuilder(tmp_path / "c.bin", np.int32) as builder:
        builder.merge_file_(tmp_path / "a")
        builder.merge_file_(tmp_path / "b")
    merged = MMapIndexedDataset(tmp_path / "c")
    assert [item.tolist() for item in merged] == [[1, 2], [3], [4]]
    assert merged.doc_idx.tolist() == [0, 1, 2, 3]


def test_merge_of_another_type_is_refused(tmp_path):
    build(tmp_path / "a", [np.array([1, 2])], np.int32)
    builder = MMapIndexedDatasetBuilder(tmp_path / "c.bin", np.int64)
    with pytest.raises(RuleError, match="holds int32, this file int64"):
        builder.merge_file_(tmp_path / "a")
    builder.close()


def test_offsets_beyond_two_gibibytes_are_read(tmp_path):
    """A sparse file: one large item of zeros, then three numbers."""
    large = 2**31 - 1
    with open(tmp_path / "d.bin", "wb") as file:
        file.seek(large * 4)
        file.write(struct.pack("<3i", 5, 6, 7))
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 4, 2, 1)
    (tmp_path / "d.idx").write_bytes(head + struct.pack("<2i2qq", large, 3, 0, large * 4, 0))
    dataset = MMapIndexedDataset(tmp_path / "d")
    assert dataset[1].tolist() == [5, 6, 7]
    assert dataset.size(0) == large


def test_slices_parts_and_negative_positions(tmp_path):
    build(tmp_path / "d", [np.arange(n) for n in (3, 4, 5)], np.int64)
    dataset = MMapIndexedDataset(tmp_path / "d")
    assert dataset[-1].tolist() == [0, 1, 2, 3, 4]
    assert [len(item) for item in dataset[::2]] == [3, 5]
    assert dataset.get(2, 1, 2).tolist() == [1, 2]
    with pytest.raises(RuleError, match="has 5 elements"):
        dataset.get(2, 4, 2)
    with pytest.raises(IndexError):
        dataset[3]


def test_items_are_read_only_and_survive_pickling(tmp_path):
    build(tmp_path / "d", [np.arange(3)], np.int64)
    dataset = pickle.loads(pickle.dumps(MMapIndexedDataset(tmp_path / "d")))
    assert not dataset[0].flags.writeable
    assert MMapIndexedDataset.exists(tmp_path / "d")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda bin_, idx: idx.write_bytes(b"x" * 99), "is no memory-mapped index"),
        (lambda bin_, idx: idx.write_bytes(idx.read_bytes()[:-1]), "it is damaged"),
        (lambda bin_, idx: bin_.write_bytes(bin_.read_bytes()[:-8]), "it is cut"),
    ],
)
def test_damage_is_found_on_opening(tmp_path, damage, message):
    build(tmp_path / "d", [np.arange(3)] * 2, np.int64)
    damage(tmp_path / "d.bin", tmp_path / "d.idx")
    with pytest.raises(FormatError, match=message):
        MMapIndexedDataset(tmp_path / "d")


def test_one_changed_byte_of_a_table_is_found(tmp_path):
    build(tmp_path / "d", [np.arange(n) for n in (3, 0, 2)], np.int32)
    good = (tmp_path / "d.idx").read_bytes()
    for at in range(34, len(good) - 4 * 8):  # sizes and pointers; documents may lie elsewhere
        (tmp_path / "d.idx").write_bytes(good[:at] + bytes([good[at] ^ 0x41]) + good[at + 1 :])
        with pytest.raises(FormatError, match=r"damaged|is cut|bytes an element"):
            MMapIndexedDataset(tmp_path / "d")


@pytest.mark.parametrize("documents", [(-1, 1), (0, 9), (2, 1)])
def test_documents_outside_the_items_are_refused(tmp_path, documents):
    build(tmp_path / "d", [np.arange(3)], np.int32)
    good = (tmp_path / "d.idx").read_bytes()
    (tmp_path / "d.idx").write_bytes(good[:-16] + struct.pack("<2q", *documents))
    with pytest.raises(FormatError, match="documents do not rise from 0 to 1"):
        MMapIndexedDataset(tmp_path / "d")


def test_damage_of_the_older_layout_is_found(tmp_path):
    with IndexedDatasetBuilder(tmp_path / "d.bin", np.int32) as builder:
        builder.add_item(np.arange(3))
        builder.add_item(np.arange(2))
    good = (tmp_path / "d.idx").read_bytes()
    for at in range(len(good)):
        for bad in (good[:at], good[:at] + bytes([good[at] ^ 0x41]) + good[at + 1 :]):
            (tmp_path / "d.idx").write_bytes(bad)
            with pytest.raises(FormatError):
                list(map(IndexedDataset(tmp_path / "d").__getitem__, range(2)))
