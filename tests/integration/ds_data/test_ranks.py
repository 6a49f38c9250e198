"""Several ranks: one analysis, equal batches, the same learning rate, exact resume."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from ds_data import (
    BatchRules,
    DataAnalyzer,
    DistributedDataAnalyzer,
    LoaderOptions,
    Metric,
    VariableBatchLoader,
    VariableBatchLR,
    sample_lengths,
    variable_batches,
)
from support.ranks import run_ranks

DATA = [torch.arange((i * 7) % 5 + 1) for i in range(103)]


def seqlen(batch):
    return torch.tensor([len(sample) for sample in batch])


def words(batch):
    return sum(torch.bincount(sample, minlength=6) for sample in batch)


def noise(batch):
    return np.asarray([sum(np.sin(len(sample)) for sample in batch)])


METRICS = [
    Metric("seqlen", seqlen),
    Metric("words", words, "accumulate_value_over_samples"),
    Metric("noise", noise, "accumulate_value_over_samples"),
]


def contents(folder):
    files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def analyze(folder, threads):
    DistributedDataAnalyzer(
        DATA, METRICS, folder, batch_size=4, collate_fn=list, num_threads=threads
    ).run_map_reduce()
    return sorted(contents(folder))


@pytest.mark.parametrize(("world_size", "threads"), [(1, 1), (2, 2), (3, 1)])
def test_ranks_write_what_one_worker_writes(tmp_path, world_size, threads):
    DataAnalyzer(DATA, METRICS, tmp_path / "one", batch_size=4, collate_fn=list).run_map_reduce()
    seen = run_ranks(analyze, world_size, str(tmp_path / "ranks"), threads)
    assert contents(tmp_path / "ranks") == contents(tmp_path / "one")
    assert seen == [sorted(contents(tmp_path / "one"))] * world_size


def analyze_as_worker(folder, late):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    time.sleep(0.5 * (rank == late))
    DataAnalyzer(
        DATA,
        METRICS,
        folder,
        num_workers=world_size,
        worker_id=rank,
        batch_size=4,
        collate_fn=list,
    ).run_map_reduce(timeout=30)


@pytest.mark.parametrize(("workers", "late"), [(2, 0), (2, 1), (5, 3)])
def test_separate_processes_in_any_order_write_what_one_writes(tmp_path, workers, late):
    DataAnalyzer(DATA, METRICS, tmp_path / "one", batch_size=4, collate_fn=list).run_map_reduce()
    run_ranks(analyze_as_worker, workers, str(tmp_path / "many"), late)
    assert contents(tmp_path / "many") == contents(tmp_path / "one")


def lengths_of(folder):
    return sample_lengths(DATA, folder).tolist()


def test_ranks_measure_lengths_once_together(tmp_path):
    assert run_ranks(lengths_of, 2, str(tmp_path)) == [[len(x) for x in DATA]] * 2


def train(steps, accumulation, state=None):
    """Some steps of data-parallel training by tokens; returns losses, rates, state."""
    torch.manual_seed(0)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    random = np.random.default_rng(0)
    data = [torch.from_numpy(random.normal(size=n)).float() for n in random.integers(1, 51, 300)]
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader, schedule = variable_batches(
        data,
        [len(x) for x in data],
        BatchRules(max_tokens=64, order="random"),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100),
        base_batch_size=12,
        micro_batches=world_size * accumulation,
        rank=rank,
        world_size=world_size,
        options=LoaderOptions(collate_fn=torch.nn.utils.rnn.pad_sequence),
    )
    if state is not None:
        model.load_state_dict(state["model"])
        loader.load_state_dict(state["loader"])
        schedule.load_state_dict(state["schedule"])
    batches, log = iter(loader), []
    for _ in range(steps):
        total = torch.zeros(())
        for _ in range(accumulation):
            batch = next(batches)
            assert batch.numel() <= 64
            loss = (model(batch.flatten()[:, None]) - 1).square().mean() / accumulation
            (loss * loader.token_weight()).backward()
            total += loss.detach()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world_size
        log.append((round(float(total), 6), optimizer.param_groups[0]["lr"]))
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    state = {
        "model": {name: value.clone() for name, value in model.state_dict().items()},
        "loader": loader.state_dict(),
        "schedule": schedule.state_dict(),
    }
    return log, state


def mean_of_ranks(results):
    losses = np.mean([[loss for loss, _ in log] for log, _ in results], axis=0)
    return losses, [rate for _, rate in results[0][0]]


@pytest.mark.parametrize("worlds", [(2, 2), (2, 1), (1, 3)])
def test_training_resumes_at_a_batch_with_another_number_of_ranks(worlds):
    before, after = worlds
    whole = run_ranks(train, 2, 9, 3)
    first = run_ranks(train, before, 4, 6 // before)
    rest = run_ranks(train, after, 5, 6 // after, first[0][1])
    losses, rates = mean_of_ranks(whole)
    parts = [mean_of_ranks(first), mean_of_ranks(rest)]
    assert [rate for _, part in parts for rate in part] == pytest.approx(rates)
    np.testing.assert_allclose(np.concatenate([part[0] for part in parts]), losses, atol=1e-4)


def test_every_rank_has_the_same_rates():
    logs = run_ranks(train, 2, 5, 3)
    assert [rate for _, rate in logs[0][0]] == [rate for _, rate in logs[1][0]]


WORKING = """
import sys, torch
from ds_data import BatchRules, LoaderOptions, VariableBatchLoader
data = [torch.zeros(n % 9 + 1) for n in range(4000)]
loader = VariableBatchLoader(data, [len(x) for x in data], BatchRules(max_tokens=32),
    options=LoaderOptions(num_workers=2, collate_fn=torch.nn.utils.rnn.pad_sequence))
for count, batch in enumerate(loader):
    if count == 5:
        print("ready", flush=True)
        if sys.argv[1] == "wait":
            sys.stdin.read()
print("done", flush=True)
"""


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if name.startswith("torch_")}


def run_loader(mode):
    return subprocess.Popen(
        [sys.executable, "-c", WORKING, mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def test_a_killed_loader_leaves_nothing_that_blocks_the_next():
    before = shared_memory()
    with run_loader("wait") as first:
        assert first.stdout.readline() == "ready\n"
        os.killpg(first.pid, signal.SIGKILL)
    with run_loader("go") as second:
        out, _ = second.communicate(timeout=60)
    assert out == "ready\ndone\n"
    assert shared_memory() <= before


def test_variable_batch_lr_and_loader_agree_over_an_epoch():
    lengths = np.random.default_rng(1).integers(1, 30, 200)
    loader = VariableBatchLoader(
        range(200),
        lengths,
        BatchRules(max_tokens=64, order="random"),
        options=LoaderOptions(collate_fn=len),
    )
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = VariableBatchLR(optimizer, base_batch_size=1, batch_sizes=loader.batch_sizes)
    for _ in range(2):
        schedule.step(0)
        for size in loader:
            assert optimizer.param_groups[0]["lr"] == size
            optimizer.step()
            schedule.step()
