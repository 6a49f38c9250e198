"""The loader hands out planned batches and resumes exactly."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ds_data import (
    BatchRules,
    LoaderOptions,
    RuleError,
    VariableBatchLoader,
    get_dataloader_and_lr_scheduler_for_variable_batch_size,
)

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
LENGTHS = np.random.default_rng(0).integers(1, 20, 200)


def ids_of(batch):
    return list(batch)


def make(order="random", *, micro_batches=4, rank=0, world_size=1, lengths=LENGTHS, **options):
    workers = options.pop("num_workers", 0)
    return VariableBatchLoader(
        range(len(lengths)),
        lengths,
        BatchRules(max_tokens=40, order=order, **options),
        micro_batches=micro_batches,
        rank=rank,
        world_size=world_size,
        options=LoaderOptions(collate_fn=ids_of, num_workers=workers),
    )


def take(loader, number):
    batches = []
    for batch in loader:
        batches.append(batch)
        if len(batches) == number:
            break
    return batches


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_share_the_batches_evenly(world_size):
    ranks = [list(make(rank=rank, world_size=world_size)) for rank in range(world_size)]
    assert len({len(batches) for batches in ranks}) == 1
    seen = sorted(i for batches in ranks for batch in batches for i in batch)
    left = make().plan.skipped
    assert seen == sorted(set(range(200)) - set(left.last.tolist()) - set(left.too_long.tolist()))


def test_micro_batches_that_cannot_be_dealt_are_refused():
    with pytest.raises(RuleError, match="4 micro-batches cannot be dealt evenly to 3 ranks"):
        make(world_size=3)


@pytest.mark.parametrize("workers", [(0, 2), (2, 0), (2, 4)])
@pytest.mark.parametrize("order", ["random", "best_fit"])
def test_batch_six_follows_batch_five_with_other_workers(workers, order):
    before, after = workers
    whole = list(make(order))
    stopped = make(order, num_workers=before)
    assert take(stopped, 5) == whole[:5]
    resumed = make(order, num_workers=after)
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert list(resumed) == whole[5:]


@pytest.mark.parametrize("count", ["padded", "unpadded"])
@pytest.mark.parametrize("worlds", [(1, 2), (4, 2), (2, 4)])
def test_another_number_of_ranks_continues_with_the_same_batches(worlds, count):
    before, after = worlds
    whole = list(make(count=count))
    stopped = make(world_size=before, count=count)
    take(stopped, 8 // before)
    ranks = [make(rank=rank, world_size=after, count=count) for rank in range(after)]
    for loader in ranks:
        loader.load_state_dict(stopped.state_dict())
    dealt = [batch for step in zip(*ranks, strict=True) for batch in step]
    assert dealt == whole[8:]


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from(["dataloader", "random", "bucketed", "best_fit"]),
    st.sampled_from([(4, 6), (6, 4), (3, 8)]),
    st.integers(0, 5),
    st.booleans(),
)
def test_another_batch_size_plans_the_rest_anew(order, sizes, done, same_size):
    before, after = sizes
    stopped = make(order, micro_batches=before, same_size=same_size)
    seen = [i for batch in take(stopped, done * before) for i in batch] if done else []
    resumed = make(order, micro_batches=after, same_size=same_size)
    resumed.load_state_dict(stopped.state_dict())
    rest = [i for batch in resumed for i in batch]
    assert len(set(seen + rest)) == len(seen) + len(rest)
    plan_size = len(seen) + len(rest)
    assert plan_size >= 200 - after * 40


def test_a_second_resume_keeps_what_the_first_one_saw():
    first = make(micro_batches=4)
    seen = [i for batch in take(first, 8) for i in batch]
    second = make(micro_batches=6)
    second.load_state_dict(first.state_dict())
    seen += [i for batch in take(second, 6) for i in batch]
    third = make(micro_batches=2)
    third.load_state_dict(second.state_dict())
    seen += [i for batch in third for i in batch]
    assert len(seen) == len(set(seen)) >= 190


def test_inside_a_batch_a_rank_count_that_does_not_divide_the_rest_is_refused():
    stopped = make()
    take(stopped, 1)
    with pytest.raises(RuleError, match="inside a batch of 4"):
        make(world_size=2).load_state_dict(stopped.state_dict())


def test_epochs_follow_each_other_and_can_be_set():
    loader = make()
    first, second = list(loader), list(loader)
    assert first != second
    again = make()
    again.set_epoch(1)
    assert list(again) == second
    with pytest.raises(RuleError, match="epoch is -1"):
        again.set_epoch(-1)


def test_setting_the_epoch_that_is_under_way_keeps_the_position():
    whole = list(make())
    stopped = make()
    take(stopped, 3)
    resumed = make()
    resumed.load_state_dict(stopped.state_dict())
    resumed.set_epoch(0)
    assert len(resumed) == len(whole) - 3
    assert list(resumed) == whole[3:]


def test_a_state_at_the_end_leaves_nothing_to_do():
    stopped = make()
    take(stopped, len(stopped))
    resumed = make()
    resumed.load_state_dict(stopped.state_dict())
    assert list(resumed) == []
    assert resumed.epoch == 1


def test_a_break_without_a_resume_starts_the_epoch_again():
    loader = make()
    assert take(loader, 2) == take(loader, 2)


def test_fewer_samples_than_workers_still_all_arrive():
    loader = make(lengths=np.array([5, 6]), micro_batches=1, num_workers=4)
    assert sorted(i for batch in loader for i in batch) == [0, 1]


def test_same_length_pads_every_sample_of_a_batch_alike():
    data = [torch.ones(int(n)) for n in LENGTHS]
    loader = VariableBatchLoader(
        data,
        LENGTHS,
        BatchRules(max_tokens=40, same_length=True),
        micro_batches=4,
        options=LoaderOptions(
            pad_sample=lambda sample, n: torch.nn.functional.pad(sample, (0, n - len(sample)))
        ),
    )
    shapes = [tuple(batch.shape) for batch in loader]
    groups = [set(shapes[i : i + 4]) for i in range(0, len(shapes), 4)]
    assert {len(group) for group in groups} == {1}


def test_same_length_without_padding_function_is_refused():
    with pytest.raises(RuleError, match="pad_sample"):
        VariableBatchLoader([], [], BatchRules(max_tokens=4, same_length=True))


def test_token_weight_is_that_of_the_batch_handed_out_last():
    loaders = [make(rank=rank, world_size=2) for rank in range(2)]
    weights = []
    for _, _ in zip(*loaders, strict=True):
        weights += [loader.token_weight() for loader in loaders]
        if len(weights) == 8:
            break
    np.testing.assert_allclose(weights, make().plan.token_weights()[:8])
    assert [loader.token_count() for loader in loaders] == make().plan.tokens[6:8].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 2, "world_size": 2}, "rank 2 does not lie in a world of 2"),
        ({"rank": -1}, "rank -1 does not lie"),
        ({"world_size": 0}, "in a world of 0"),
        ({"seed": -1}, "seed is -1: it must not be negative"),
        ({"max_length": 0}, "max_length is 0: it must be at least 1"),
        ({"lengths": np.full(4, 2.5)}, "lengths are whole numbers"),
    ],
)
def test_what_would_deal_wrongly_is_refused(options, message):
    with pytest.raises(RuleError, match=message):
        make(**options)


def test_lengths_of_other_data_and_ids_outside_are_refused():
    rules = BatchRules(max_tokens=40)
    with pytest.raises(RuleError, match="2 lengths are given for 9 samples"):
        VariableBatchLoader(range(9), [3, 4], rules)
    with pytest.raises(RuleError, match="ids reach from -1 to 0: there are 2 samples"):
        list(VariableBatchLoader(range(2), [3, 4], rules, ids=[-1, 0]))


def test_a_state_of_other_rules_or_lengths_is_refused():
    stopped = make()
    take(stopped, 3)
    state = json.loads(json.dumps(stopped.state_dict()))
    with pytest.raises(RuleError, match="seed was 0, is 3"):
        make(seed=3).load_state_dict(state)
    with pytest.raises(RuleError, match="samples was 200, is 190; checksum was"):
        make(lengths=LENGTHS[:190]).load_state_dict(state)


def test_tokens_are_told_only_of_what_was_handed_out():
    loader = make()
    for batch in loader:
        assert loader.token_count() == LENGTHS[batch].sum()
    with pytest.raises(RuleError, match="no micro-batch of this epoch"):
        loader.token_count()


@pytest.mark.parametrize(("rank", "told"), [(0, 1), (1, 0)])
def test_too_long_samples_are_told_once_on_the_first_rank(caplog, rank, told):
    loader = make(rank=rank, world_size=2, max_length=15)
    epochs = [list(loader), list(loader)]
    assert len(epochs) == 2
    message = f"{(LENGTHS > 15).sum()} of 200 samples are longer than the limit of 15 and left out"
    assert [message in record.getMessage() for record in caplog.records] == [True] * told


def test_a_resumed_loader_tells_of_the_whole_epoch(caplog):
    stopped = make(max_length=15)
    take(stopped, 4)
    caplog.clear()
    resumed = make(max_length=15, micro_batches=2)
    resumed.load_state_dict(stopped.state_dict())
    list(resumed)
    assert caplog.messages[0].startswith(f"{(LENGTHS > 15).sum()} of 200 samples")
    assert len(caplog.messages) == 1


def test_loaders_of_the_old_signature_tell_of_too_long_samples_once(caplog):
    get_dataloader_and_lr_scheduler_for_variable_batch_size(range(200), LENGTHS, 15, 4)
    assert sum("long" in message for message in caplog.messages) == 1
