"""The data library's old import paths."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import torch

from deepspeed.legacy.data import NAMES
from ds_core.errors import ConfigError


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in NAMES.items() for name in names]
)
def test_every_old_name_is_served_or_refused_with_a_reason(module, name):
    if NAMES[module][name].startswith("!"):
        refused = getattr(importlib.import_module(module), name)
        with pytest.raises(Exception, match=NAMES[module][name][1:12]):
            refused()
    else:
        assert getattr(importlib.import_module(module), name) is not None


INDEXED = "deepspeed.runtime.data_pipeline.data_sampling.indexed_dataset"


@pytest.mark.parametrize("impl", ["lazy", "cached", "mmap"])
def test_data_sets_of_each_kind_round_trip(tmp_path, impl):
    module = importlib.import_module(INDEXED)
    items = [torch.tensor([1, 2]), torch.tensor([5])]
    builder = module.make_builder(str(tmp_path / "d.bin"), impl, vocab_size=100)
    for item in items:
        builder.add_item(item)
    builder.end_document()
    builder.finalize(str(tmp_path / "d.idx"))
    for wanted in (impl, "infer"):
        dataset = module.make_dataset(str(tmp_path / "d"), wanted)
        assert [item.tolist() for item in dataset[0:2]] == [[1, 2], [5]]
        assert dataset.doc_idx.tolist() == [0, 2]


def test_the_older_layout_has_the_bytes_of_its_other_writers(tmp_path):
    module = importlib.import_module(INDEXED)
    builder = module.IndexedDatasetBuilder(str(tmp_path / "d.bin"), dtype=np.int32)
    builder.add_item(torch.tensor([1, 2]))
    builder.add_item(torch.tensor([5]))
    builder.end_document()
    builder.finalize(str(tmp_path / "d.idx"))
    numbers = [1, 4, 4, 2, 2, 2, 0, 1, 2, 0, 2, 3, 2, 1, 0, 2]
    assert (tmp_path / "d.idx").read_bytes() == b"TNTIDX\0\0" + np.asarray(numbers, "<i8").tobytes()
    merged = module.IndexedDatasetBuilder(str(tmp_path / "e.bin"), dtype=np.int32)
    for _ in range(2):
        merged.merge_file_(str(tmp_path / "d"))
    merged.finalize(str(tmp_path / "e.idx"))
    dataset = module.IndexedCachedDataset(str(tmp_path / "e"))
    dataset.prefetch([3, 0])
    assert [item.tolist() for item in dataset[0:4]] == [[1, 2], [5], [1, 2], [5]]
    assert dataset.doc_idx.tolist() == [0, 2, 4]


def test_analyzer_takes_its_old_arguments(tmp_path):
    module = importlib.import_module("deepspeed.runtime.data_pipeline.data_sampling.data_analyzer")
    analyzer = module.DataAnalyzer(
        [torch.arange(n % 3 + 1) for n in range(10)],
        batch_size=2,
        metric_names=["seqlen"],
        metric_functions=[lambda batch: torch.tensor([len(x) for x in batch])],
        metric_types=["single_value_per_sample"],
        metric_dtypes=[torch.int64],
        save_path=str(tmp_path),
        collate_fn=list,
    )
    analyzer.run_map_reduce()
    read = importlib.import_module(INDEXED).MMapIndexedDataset
    table = read(str(tmp_path / "seqlen/seqlen_index_to_sample"))
    assert [row.tolist() for row in table] == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]


def test_analyzer_names_lists_that_do_not_match(tmp_path):
    module = importlib.import_module("deepspeed.runtime.data_pipeline.data_sampling.data_analyzer")
    with pytest.raises(ConfigError, match="there must be equally many"):
        module.DataAnalyzer([], metric_names=["a"], save_path=str(tmp_path))


def test_packs_made_before_are_dealt_to_ranks():
    module = importlib.import_module(
        "deepspeed.runtime.data_pipeline.data_sampling.variable_batch_size_and_lr"
    )
    data = [torch.full((n,), float(n)) for n in (3, 4, 5, 6, 7, 8, 9, 2)]
    packs, sizes, longest = module.batch_by_seqlens(
        [len(x) for x in data], 12, effective_batch_size=4, required_microbatches_of_same_size=True
    )
    ranks = [
        module.dataloader_for_variable_batch_size(
            data,
            packs,
            longest,
            dataloader_rank=rank,
            dataloader_num_replicas=2,
            dataloader_num_workers=0,
            dataloader_collate_fn=torch.stack,
            required_microbatches_of_same_seqlen=True,
            sample_padding_fn=lambda x, n: torch.nn.functional.pad(x, (0, n - len(x))),
        )[0]
        for rank in range(2)
    ]
    shapes = [[tuple(batch.shape) for batch in loader] for loader in ranks]
    assert shapes[0] == shapes[1] == [(1, longest[0])] * 2 + [(1, longest[1])] * 2
    assert sizes == [4, 4]


def test_sampler_takes_its_old_arguments():
    module = importlib.import_module("deepspeed.runtime.data_pipeline.data_sampling.data_sampler")
    metric = {
        "clustering_type": "single_cluster",
        "min_difficulty": 1,
        "max_difficulty": 9,
        "schedule_type": "custom",
    }
    curriculum = {"enabled": True, "curriculum_metrics": {"seqlen": metric}}
    config = {
        "enabled": True,
        "data_sampling": {"enabled": True, "num_epochs": 1, "curriculum_learning": curriculum},
    }
    sampler = module.DeepSpeedDataSampler(config, 20, 2, 0, 2, None, 1, 0)
    with pytest.raises(ConfigError, match="'other' is no curriculum metric; there are seqlen"):
        sampler.set_custom_curriculum_learning_schedule({"other": lambda step: step})
    sampler.set_custom_curriculum_learning_schedule({"seqlen": lambda step: step})
    assert len(sampler.get_next_global_batch()) == 4
    assert sampler.difficulties() == {"seqlen": 1}
