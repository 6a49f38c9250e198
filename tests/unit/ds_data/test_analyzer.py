"""The analysis is the same whoever does it, and goes on after an interruption."""

import threading
import time

import numpy as np
import pytest
import torch

from ds_data import (
    DataAnalyzer,
    Metric,
    MissingPart,
    MMapIndexedDataset,
    RuleError,
    progress_bar,
    sample_lengths,
)
from ds_data.metric_files import metric_prefix, read_sample_values

DATA = [torch.arange((i * 7) % 5 + 1) for i in range(103)]


def seqlen(batch):
    return torch.tensor([len(sample) for sample in batch])


def words(batch):
    return sum(torch.bincount(sample, minlength=6) for sample in batch)


def mean_noise(batch):
    return np.asarray([sum(np.sin(len(sample)) for sample in batch)])


METRICS = [
    Metric("seqlen", seqlen),
    Metric("words", words, "accumulate_value_over_samples"),
    Metric("noise", mean_noise, "accumulate_value_over_samples"),
]


def analyzer(folder, worker_id=0, num_workers=1, metrics=METRICS, **options):
    return DataAnalyzer(
        DATA,
        metrics,
        folder,
        num_workers=num_workers,
        worker_id=worker_id,
        **{"batch_size": 4, "collate_fn": list, **options},
    )


def contents(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def reference(tmp_path):
    analyzer(tmp_path / "one").run_map_reduce()
    return contents(tmp_path / "one")


@pytest.mark.parametrize(("workers", "threads"), [(1, 3), (2, 1), (5, 2), (40, 1)])
def test_results_do_not_depend_on_workers_or_threads(tmp_path, reference, workers, threads):
    folder = tmp_path / "many"
    for worker in reversed(range(workers)):
        analyzer(folder, worker, workers, num_threads=threads).run_map()
    analyzer(folder, 0, workers).run_reduce()
    assert contents(folder) == reference


def test_results_are_few_files_that_hold_the_metrics(tmp_path, reference):
    assert len(reference) < 20
    lengths = [len(sample) for sample in DATA]
    folder = tmp_path / "one"
    assert read_sample_values(folder, "seqlen").tolist() == lengths
    samples = MMapIndexedDataset(metric_prefix(folder, "seqlen", "index_to_sample"))
    values = MMapIndexedDataset(metric_prefix(folder, "seqlen", "index_to_metric"))
    assert [int(value[0]) for value in values] == [1, 2, 3, 4, 5]
    assert all(lengths[i] == v[0] for row, v in zip(samples, values, strict=True) for i in row)
    merged = MMapIndexedDataset(
        metric_prefix(folder, "seqlen", "index_to_sample_percentile_merged")
    )
    assert len(merged) == 100
    assert np.concatenate(list(merged)).tolist() == np.concatenate(list(samples)).tolist()
    total = MMapIndexedDataset(metric_prefix(folder, "words", "metric_value"))
    assert total[0].tolist() == words(DATA).tolist()


def test_a_missing_part_is_named(tmp_path):
    for worker in (0, 1, 3):
        analyzer(tmp_path, worker, 5).run_map()
    with pytest.raises(MissingPart, match=r"workers \[2, 4\] of 5"):
        analyzer(tmp_path, 0, 5).run_reduce()


@pytest.mark.parametrize("late", [0, 1])
def test_one_call_a_worker_waits_for_the_slow_one(tmp_path, reference, late):
    folder = tmp_path / "both"

    def work(worker):
        time.sleep(0.2 * (worker == late))
        analyzer(folder, worker, 2).run_map_reduce(timeout=20)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert contents(folder) == reference


def test_waiting_ends_with_the_missing_worker_named(tmp_path):
    with pytest.raises(MissingPart, match=r"workers \[1\] of 2"):
        analyzer(tmp_path, 0, 2).run_map_reduce(timeout=0.1)


def test_an_interrupted_map_goes_on_where_it_stopped(tmp_path, reference, monkeypatch):
    monkeypatch.setattr("ds_data.analyzer._FLUSH_SAMPLES", 20)
    calls = []

    def fails_once(batch):
        calls.append(len(batch))
        if len(calls) == 20:
            raise OSError("the node went down")
        return seqlen(batch)

    metrics = [Metric("seqlen", fails_once), *METRICS[1:]]
    folder = tmp_path / "again"
    with pytest.raises(OSError, match="went down"):
        analyzer(folder, metrics=metrics).run_map()
    analyzer(folder, metrics=metrics).run_map_reduce()
    assert contents(folder) == reference
    assert len(calls) < 26 + 12


def test_progress_is_told_up_to_the_end(tmp_path):
    seen = []
    analyzer(tmp_path, progress=lambda done, total: seen.append((done, total))).run_map()
    assert seen[-1] == (103, 103)


def test_a_bar_shows_the_progress(tmp_path, capsys):
    pytest.importorskip("tqdm")
    analyzer(tmp_path, progress=progress_bar("lengths")).run_map()
    assert "103/103" in capsys.readouterr().err


def test_ids_stand_in_for_positions(tmp_path):
    options = {"sample_indices": np.arange(103) + 1000, "metrics": METRICS[:1]}
    analyzer(tmp_path, **options).run_map_reduce()
    samples = MMapIndexedDataset(metric_prefix(tmp_path, "seqlen", "index_to_sample"))
    assert samples[0][0] == 1000


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda batch: [1], "gave 1 values for 4 samples"),
        (lambda batch: [0.5] * len(batch), "scale and round them"),
    ],
)
def test_a_metric_that_gives_something_else_is_refused(tmp_path, function, message):
    with pytest.raises(RuleError, match=message):
        analyzer(tmp_path, metrics=[Metric("m", function)]).run_map()


def test_negative_values_are_kept(tmp_path):
    metric = Metric("m", lambda batch: [-300] * len(batch))
    analyzer(tmp_path, metrics=[metric]).run_map_reduce()
    assert set(read_sample_values(tmp_path, "m")) == {-300}


def test_lengths_are_measured_once(tmp_path):
    first = sample_lengths(DATA, tmp_path)
    assert first.tolist() == [len(sample) for sample in DATA]
    again = sample_lengths(DATA, tmp_path, lambda batch: pytest.fail("measured again"))
    assert again.tolist() == first.tolist()


def test_lengths_of_another_data_set_are_refused(tmp_path):
    sample_lengths(DATA, tmp_path)
    with pytest.raises(RuleError, match="remove the files of another data set"):
        sample_lengths(DATA[:50], tmp_path)


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["a", "a"], {}, "needs a file name of its own"),
        (["../a"], {}, "needs a file name of its own"),
        (["a"], {"sample_indices": [1]}, "1 sample_indices for 2 samples"),
    ],
)
def test_what_would_be_written_over_is_refused(tmp_path, names, options, message):
    metrics = [Metric(name, len) for name in names]
    with pytest.raises(RuleError, match=message):
        DataAnalyzer(["x", "y"], metrics, tmp_path, **options)
