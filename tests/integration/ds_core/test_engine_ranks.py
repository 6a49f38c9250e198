"""Several ranks: same result as one, clear errors where ranks differ, no silent wait."""

from __future__ import annotations

import logging
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ds_core.agreement import model_facts, require_agreement
from ds_core.comm import Communicator
from ds_core.engine import Engine
from ds_core.errors import CollectiveTimeout, RankMismatchError
from ds_core.groups import make_groups
from ds_core.optimizers import parameter_groups
from ds_core.precision import PrecisionSettings
from ds_core.replicated import Replicated, ReplicatedSettings
from ds_core.training_state import load_engine, save_engine
from support.ranks import RankFailure, run_ranks
from support.strategies import Setup, build_engine
from support.training import adamw, engine_run, make_batch, make_model


def engine_over(module, optimizer, *, accumulation=1, **settings):
    groups = make_groups()
    strategy = Replicated(
        module,
        parameter_groups(module.parameters()),
        optimizer,
        groups=groups,
        precision=PrecisionSettings(),
        settings=ReplicatedSettings(**settings),
    )
    return Engine(module, strategy, groups=groups, accumulation_steps=accumulation)


def run_with_no_sync(use_no_sync):
    engine = build_engine("replicated", Setup(accumulation=4))
    losses = []
    for step in range(3):
        for micro in range(4):
            batch = make_batch(step, micro, dist.get_rank())
            if use_no_sync and micro < 3:
                with engine.no_sync():
                    engine.backward(engine(*batch))
            else:
                engine.backward(engine(*batch))
            report = engine.step()
        losses.append(report.grad_norm)
    return losses


def test_no_sync_changes_nothing():
    assert run_ranks(run_with_no_sync, 2, True) == run_ranks(run_with_no_sync, 2, False)


def run_branch(owners):
    """A branch that only some ranks use, on the second of three micro-batches."""
    torch.manual_seed(0)
    module = nn.ModuleDict({"trunk": nn.Linear(2, 2), "branch": nn.Linear(2, 2)})
    engine = engine_over(module, lambda p: torch.optim.SGD(p, lr=1.0), accumulation=3, max_norm=9.0)
    for micro in range(3):
        hidden = module["trunk"](torch.ones(1, 2))
        if micro == 1 and dist.get_rank() in owners:
            hidden = hidden + module["branch"](hidden)
        engine.backward(hidden.sum())
        engine.step()
    return {name: value.tolist() for name, value in module.state_dict().items()}


def test_a_branch_used_by_one_rank_once_equals_the_plain_mean():
    torch.manual_seed(0)
    module = nn.ModuleDict({"trunk": nn.Linear(2, 2), "branch": nn.Linear(2, 2)})
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    for use in (False, False, False, True, False, False):
        hidden = module["trunk"](torch.ones(1, 2))
        if use:
            hidden = hidden + module["branch"](hidden)
        (hidden.sum() / 6).backward()
    nn.utils.clip_grad_norm_(module.parameters(), 9.0)
    optimizer.step()
    for result in run_ranks(run_branch, 2, [1]):
        for name, value in module.state_dict().items():
            torch.testing.assert_close(torch.tensor(result[name]), value, msg=name)


def run_weighted(tokens):
    torch.manual_seed(0)
    module = nn.Linear(1, 1, bias=False)
    engine = engine_over(module, lambda p: torch.optim.SGD(p, lr=1.0), accumulation=2, max_norm=0)
    for step in range(2):
        for micro in range(2):
            count = tokens[step][dist.get_rank()][micro]
            samples = torch.arange(count, dtype=torch.float32)[:, None] + step
            engine.backward(engine(samples).mean(), weight=float(count))
            report = engine.step()
    return report.grad_norm


def test_weights_of_batches_give_the_mean_over_all_tokens():
    tokens = [[[3, 5], [2, 7]], [[1, 2], [9, 4]]]
    every = torch.cat([torch.arange(n) + 1.0 for rank in tokens[1] for n in rank])
    for norm in run_ranks(run_weighted, 2, tokens):
        assert norm == pytest.approx(every.mean().item(), rel=1e-6)


def run_sparse(dense_too):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(10, 3, sparse=not dense_too), nn.Linear(3, 1))
    engine = engine_over(module, lambda p: torch.optim.SGD(p, lr=0.5), sparse_gradients=dense_too)
    rank = dist.get_rank()
    for step in range(3):
        rows = torch.tensor([[rank + step, 5], [7, rank]])
        if step == 2 and rank == 0:
            engine.backward(module[1](torch.ones(1, 3)).sum())  # no embedding on this rank
        else:
            engine.backward(engine(rows).mean())
        engine.step()
    return module[0].weight.detach()


@pytest.mark.parametrize("dense_too", [False, True])
def test_sparse_embedding_gradients_equal_dense_ones(dense_too):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Embedding(10, 3), nn.Linear(3, 1))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    for step in range(3):
        for rank in range(2):
            rows = torch.tensor([[rank + step, 5], [7, rank]])
            lonely = step == 2 and rank == 0
            loss = module[1](torch.ones(1, 3)).sum() if lonely else module(rows).mean()
            (loss / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    for weight in run_ranks(run_sparse, 2, dense_too):
        torch.testing.assert_close(weight, module[0].weight.detach())


def run_with_settings(settings, dtype):
    return engine_run(
        build_engine_with(settings, dtype), steps=2, accumulation=1, masters=lambda p: p
    ).norms


def build_engine_with(settings, communication):
    module = make_model()
    groups = make_groups()
    strategy = Replicated(
        module,
        parameter_groups(module.parameters()),
        adamw,
        groups=groups,
        precision=PrecisionSettings(communication_dtype=communication),
        settings=ReplicatedSettings(**settings),
    )
    return Engine(module, strategy, groups=groups)


@pytest.mark.parametrize(
    ("settings", "communication", "tolerance"),
    [
        ({"predivide": 2.0}, None, 1e-6),
        ({"predivide": 8.0}, None, 1e-6),
        ({}, torch.bfloat16, 2e-2),
        ({}, torch.float16, 2e-3),
    ],
)
def test_how_gradients_travel_does_not_change_what_arrives(settings, communication, tolerance):
    plain = run_ranks(run_with_settings, 2, {}, None)[0]
    found = run_ranks(run_with_settings, 2, settings, communication)[0]
    assert found == pytest.approx(plain, rel=tolerance)


def disagree_on_model():
    width = 3 if dist.get_rank() == 1 else 2
    require_agreement(Communicator(), "the model", model_facts(nn.Linear(width, 1)))


def test_ranks_with_different_models_are_told_apart_by_name():
    with pytest.raises(
        RankFailure, match=r"'weight' is\n +rank 0: \(1, 2\)[\s\S]*rank 1: \(1, 3\)"
    ):
        run_ranks(disagree_on_model, 2)


def wait_alone():
    comm = Communicator(name="data")
    if dist.get_rank() == 1:
        time.sleep(4)
        return None
    start = time.monotonic()
    with pytest.raises(CollectiveTimeout) as caught:
        comm.all_reduce(torch.ones(1), label="gradient bucket 0").wait()
    return str(caught.value), time.monotonic() - start


def test_a_rank_that_never_comes_is_named_within_the_timeout():
    message, seconds = run_ranks(wait_alone, 2, group_timeout=2)[0]
    assert "all_reduce number 1 (gradient bucket 0)" in message
    assert "rank 1: has not arrived" in message
    assert seconds < 4


def disagree_on_collective():
    comm = Communicator(name="data", check=True)
    size = 2 + dist.get_rank()
    with pytest.raises(RankMismatchError) as caught:
        comm.all_reduce(torch.ones(size), label="norm")
    return str(caught.value)


def test_checked_collectives_name_what_each_rank_brought():
    message = run_ranks(disagree_on_collective, 2)[0]
    assert "rank 0: ('all_reduce', 'norm', (2, 'torch.float32'))" in message
    assert "rank 1: ('all_reduce', 'norm', (3, 'torch.float32'))" in message


def count_collectives():
    groups = make_groups()
    events = []
    remove = groups.taps.add(events.append)
    groups.data.all_reduce(torch.ones(4), label="first").wait()
    work = groups.data.all_reduce(torch.ones(2), label="second", async_op=True)
    work.wait()
    remove()
    groups.data.all_reduce(torch.ones(1)).wait()
    return [(e.op, e.nbytes, e.world_size, e.label, e.duration >= e.waited) for e in events]


def test_observers_see_each_collective_until_they_are_removed():
    expected = [("all_reduce", 16, 2, "first", True), ("all_reduce", 8, 2, "second", True)]
    assert run_ranks(count_collectives, 2) == [expected, expected]


def save_three_steps(folder, dtype):
    engine = build_engine("replicated", Setup(2, 0.3, dtype))
    engine_run(engine, steps=3, accumulation=2, masters=engine.strategy.held)
    save_engine(engine, folder, "third", client_state={"epoch": 1})
    return states_of(engine)


def load_and_compare(folder, dtype):
    engine = build_engine("replicated", Setup(2, 0.3, dtype))
    with load_engine(engine, folder) as checkpoint:
        assert checkpoint.client_state() == {"epoch": 1}
    assert engine.counters.steps == 3
    return states_of(engine)


def states_of(engine):
    """Every weight and optimizer tensor by name."""
    found = {}
    for name, param in engine.module.named_parameters():
        held = engine.strategy.held(param)
        found[name] = held.detach().clone()
        for slot, value in engine.strategy.optimizer.state.get(held, {}).items():
            found[f"{name}/{slot}"] = value.clone()
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_checkpoint_of_two_ranks_resumes_on_any_number_bit_for_bit(tmp_path, ranks, dtype):
    saved = run_ranks(save_three_steps, 2, str(tmp_path), dtype)[0]
    for loaded in run_ranks(load_and_compare, ranks, str(tmp_path), dtype):
        assert loaded.keys() == saved.keys()
        for name, value in saved.items():
            assert torch.equal(loaded[name], value), name


def load_and_listen(folder):
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logging.getLogger("ds_core").addHandler(handler)
    load_and_compare(folder, torch.float32)
    return [text for text in records if "random generators" in text]


def test_generators_that_are_left_alone_are_told_once_in_all(tmp_path):
    run_ranks(save_three_steps, 1, str(tmp_path), torch.float32)
    first, second = run_ranks(load_and_listen, 2, str(tmp_path))
    assert (len(first), second) == (1, [])


class HalfEach:
    """A Megatron-style `mpu`: two model-parallel ranks, one data-parallel rank each."""

    def __init__(self):
        self._alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]

    def get_data_parallel_group(self):
        return self._alone

    def get_model_parallel_group(self):
        return dist.group.WORLD


def train_halves(folder):
    """Each rank holds half of a layer under the same name; the norm and clipping are global."""
    torch.manual_seed(dist.get_rank())
    module = nn.Linear(2, 2, bias=False)
    module.weight.tensor_model_parallel = True
    groups = make_groups(HalfEach())
    strategy = Replicated(
        module,
        parameter_groups(module.parameters()),
        lambda params: torch.optim.SGD(params, lr=1.0),
        groups=groups,
        precision=PrecisionSettings(),
        settings=ReplicatedSettings(max_norm=1.0),
    )
    scope = f"mp{groups.model.rank:02d}."
    engine = Engine(module, strategy, groups=groups, state_scope=scope)
    before = module.weight.detach().clone()
    engine.backward(engine(torch.tensor([[3.0, 4.0]])).sum())
    norm = engine.step().grad_norm
    save_engine(engine, folder, "t")
    after = module.weight.detach().clone()
    with torch.no_grad():
        module.weight.zero_()
    load_engine(engine, folder).close()
    assert torch.equal(module.weight, after)
    return norm, (before - after).norm().item()


def test_a_model_cut_over_an_mpu_is_clipped_and_saved_as_a_whole(tmp_path):
    (norm, moved), (other_norm, other_moved) = run_ranks(train_halves, 2, str(tmp_path))
    assert norm == other_norm == pytest.approx(10.0)  # 2 ranks x 2 rows of (3, 4)
    assert (moved**2 + other_moved**2) ** 0.5 == pytest.approx(1.0, rel=1e-5)


def skip_one_backward():
    torch.manual_seed(0)
    module = nn.Linear(3, 3)
    engine = engine_over(module, lambda p: torch.optim.SGD(p, lr=0.1))
    for step in range(3):
        loss = engine(torch.ones(1, 3) * (1 + dist.get_rank())).square().mean()
        if not (dist.get_rank() == 1 and step == 1):
            engine.backward(loss)
        engine.step()
    return module.weight.detach()


def test_a_rank_that_skips_a_backward_counts_as_zero_and_stays_equal():
    first, second = run_ranks(skip_one_backward, 2)
    assert torch.equal(first, second)
