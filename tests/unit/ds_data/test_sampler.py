"""Batches are drawn from what the curriculum allows, and resume exactly."""

import json

import numpy as np
import pytest

from ds_data import (
    CurriculumLoader,
    CurriculumRule,
    CurriculumSampler,
    CurriculumScheduler,
    RuleError,
    Shares,
)
from ds_data.metric_files import metric_prefix, write_single
from ds_data.sampler import _Cluster

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def schedule(least, most, steps=10, multiple=1):
    return CurriculumScheduler(
        {
            "min_difficulty": least,
            "max_difficulty": most,
            "schedule_type": "fixed_linear",
            "schedule_config": {"total_curriculum_step": steps, "difficulty_step": multiple},
        }
    )


def by_value(values, least, most, **kwargs):
    return CurriculumRule(schedule=schedule(least, most, **kwargs), values=np.asarray(values))


def make(values=range(100), shares=None, **kwargs):
    shares = shares or Shares(micro_batch_size=4, accumulation_steps=2)
    rules = {"seqlen": by_value(values, 20, 99)}
    return CurriculumSampler(len(values), shares, rules, **{"num_epochs": 2, **kwargs})


@pytest.mark.parametrize(("members", "asked"), [(2, 8), (3, 7), (8, 8), (1, 5)])
def test_a_small_cluster_fills_a_batch_evenly(members, asked):
    cluster = _Cluster(np.arange(members), (1,))
    counts = np.bincount(np.concatenate([cluster.draw(asked), cluster.draw(asked)]))
    assert counts.sum() == 2 * asked
    assert counts.max() - counts.min() <= 1


def test_a_batch_of_eight_from_two_samples_holds_each_four_times():
    rules = {"m": by_value([1, 1, 50], 1, 1)}
    sampler = CurriculumSampler(3, Shares(micro_batch_size=8), rules, num_epochs=9)
    batch = next(iter(sampler))
    assert sorted(batch) == [0] * 4 + [1] * 4


def test_no_sample_is_harder_than_its_step_allows():
    sampler, allowed = make(), schedule(20, 99)
    for step, batch in enumerate(iter(lambda: sampler.next_global_batch(8).tolist(), None), 1):
        assert max(batch) <= allowed.update_difficulty(step)
        if step == 12:
            return


def test_percentile_allows_that_share_of_the_samples():
    ranks = np.random.default_rng(0).permutation(200)
    rule = CurriculumRule(schedule=schedule(10, 100), ranks=ranks)
    assert [int(rule.allowed(share).sum()) for share in (10, 55, 100)] == [20, 110, 200]


def test_several_metrics_must_all_allow_a_sample():
    values = np.arange(100)
    rules = {"a": by_value(values, 50, 50), "b": by_value(99 - values, 60, 60)}
    sampler = CurriculumSampler(100, Shares(micro_batch_size=50), rules, num_epochs=50)
    assert set(sampler.next_global_batch(200).tolist()) == set(range(39, 51))


def test_a_single_cluster_draws_from_everything():
    rules = {"seqlen_truncate": CurriculumRule(schedule=schedule(8, 64))}
    sampler = CurriculumSampler(100, Shares(micro_batch_size=100), rules)
    assert sorted(sampler.next_global_batch().tolist()) == list(range(100))
    assert sampler.difficulties()["seqlen_truncate"] >= 8


def test_without_a_curriculum_epochs_are_whole():
    sampler = CurriculumSampler(30, Shares(micro_batch_size=10), num_epochs=2)
    batches = list(sampler)
    assert sorted(i for batch in batches[:3] for i in batch) == list(range(30))
    assert len(batches) == len(sampler) == 6


def test_nothing_easy_enough_is_an_error():
    rules = {"seqlen": by_value([50, 60], 10, 20)}
    with pytest.raises(RuleError, match="no sample is as easy as"):
        next(iter(CurriculumSampler(2, Shares(micro_batch_size=1), rules)))


def test_ranks_take_disjoint_parts_of_one_batch():
    ranks = [make(shares=Shares(micro_batch_size=2, rank=r, world_size=4)) for r in range(4)]
    parts = [next(iter(sampler)) for sampler in ranks]
    whole = make(shares=Shares(micro_batch_size=8)).next_global_batch(8)
    assert [i for part in parts for i in part] == whole.tolist()


@pytest.mark.parametrize("drop_last", [True, False])
def test_the_end_is_counted_in_samples(drop_last):
    shares = Shares(micro_batch_size=3, accumulation_steps=2)
    sampler = CurriculumSampler(20, shares, num_epochs=1, drop_last=drop_last)
    batches = list(sampler)
    assert sum(len(batch) for batch in batches) == (18 if drop_last else 20)
    assert len(batches) == len(sampler)


def test_an_incomplete_end_is_alike_on_every_rank():
    ranks = [
        CurriculumSampler(
            45, Shares(micro_batch_size=3, rank=rank, world_size=4), num_epochs=1, drop_last=False
        )
        for rank in range(4)
    ]
    sizes = [[len(batch) for batch in sampler] for sampler in ranks]
    assert sizes == [[3, 3, 3, 3]] * 4
    assert len(ranks[0]) == 4


@pytest.mark.parametrize("workers", [(0, 0), (0, 2), (2, 4)])
@pytest.mark.parametrize("stop", [1, 4, 7])
def test_resume_follows_what_was_handed_out(workers, stop):
    before, after = workers
    whole = list(make())
    loader = CurriculumLoader(range(100), make(), collate_fn=list, num_workers=before)
    seen = [batch for _, batch in zip(range(stop), loader, strict=False)]
    resumed = make()
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    rest = list(CurriculumLoader(range(100), resumed, collate_fn=list, num_workers=after))
    assert seen + rest == whole


def test_resume_with_another_number_of_ranks():
    whole = make(shares=Shares(micro_batch_size=8))
    batches = [whole.next_global_batch(8).tolist() for _ in range(5)]
    first = make(shares=Shares(micro_batch_size=4, world_size=2))
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    ranks = [make(shares=Shares(micro_batch_size=2, rank=r, world_size=4)) for r in range(4)]
    for sampler in ranks:
        sampler.load_state_dict(first.state_dict())
    assert [i for sampler in ranks for i in next(iter(sampler))] == batches[3]


def test_post_process_sees_the_state_of_its_batch():
    loader = CurriculumLoader(
        range(100),
        make(),
        collate_fn=list,
        num_workers=2,
        post_process=lambda batch, state: (state["current_difficulties"]["seqlen"], max(batch)),
    )
    difficulties = [difficulty for difficulty, _ in loader]
    assert difficulties[0] == 27  # both micro-batches of step 1
    assert difficulties == sorted(difficulties)


def test_a_second_iteration_goes_on_after_what_was_handed_out():
    loader = CurriculumLoader(range(100), make(), collate_fn=list, num_workers=2)
    first = [batch for _, batch in zip(range(3), loader, strict=False)]
    assert first + list(loader) == list(make())


def test_clusters_are_kept_where_asked(tmp_path):
    plain, kept = make(), make(cluster_path=tmp_path)
    assert list(plain) == list(kept)
    assert (tmp_path / "cluster_0.npy").exists()


@pytest.mark.parametrize("difficulty", ["value", "percentile"])
def test_rules_are_read_from_the_analyzers_files(tmp_path, difficulty):
    values = np.random.default_rng(0).integers(1, 30, 200)
    write_single(tmp_path, "len", values)
    table = "index_to_sample" + ("_percentile_merged" if difficulty == "percentile" else "")
    rule = CurriculumRule.from_files(
        schedule(1, 100),
        index_to_sample=metric_prefix(tmp_path, "len", table),
        index_to_metric=metric_prefix(tmp_path, "len", "index_to_metric"),
        difficulty=difficulty,
        num_samples=200,
    )
    allowed = rule.allowed(15)
    assert allowed.sum() == ((values <= 15).sum() if difficulty == "value" else 30)
    assert values[allowed].max() <= values[~allowed].min()


def test_files_of_another_data_set_are_refused(tmp_path):
    write_single(tmp_path, "len", np.arange(1, 50))
    with pytest.raises(RuleError, match="was made from another one"):
        CurriculumRule.from_files(
            schedule(1, 9),
            index_to_sample=metric_prefix(tmp_path, "len", "index_to_sample"),
            index_to_metric=metric_prefix(tmp_path, "len", "index_to_metric"),
            difficulty="value",
            num_samples=20,
        )


@pytest.mark.parametrize("values", [[5], range(50)])
def test_values_of_other_data_are_refused(values):
    rule = by_value(list(values), 20, 99)
    with pytest.raises(RuleError, match="expected one for each of 100 samples"):
        CurriculumSampler(100, Shares(micro_batch_size=4), {"words": rule})


@pytest.mark.parametrize("wrong", [{"rank": 2}, {"rank": -1}, {"world_size": 0}])
def test_shares_outside_the_world_are_refused(wrong):
    with pytest.raises(RuleError, match="does not lie in a world of"):
        Shares(**({"micro_batch_size": 4, "world_size": 2} | wrong))


def test_a_state_of_another_number_of_samples_is_refused():
    state = make().state_dict()
    with pytest.raises(RuleError, match="the state is of 100 samples, there are 50"):
        make(range(50)).load_state_dict(state)
