"""Dynamic batches, curricula, token dropping through `deepspeed.initialize`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import deepspeed
from deepspeed.adapters.data_engine import DataAnswers
from ds_data.metric_files import metric_prefix, write_single
from support.ranks import run_ranks

BATCH = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2}
SGD = {"optimizer": {"type": "SGD", "params": {"lr": 1e-3}}}
LENGTHS = np.random.default_rng(0).integers(2, 20, 400).tolist()
DATA = [torch.full((n, 1), float(n)) for n in LENGTHS]
RISE = {
    "min_difficulty": 8,
    "max_difficulty": 64,
    "schedule_type": "fixed_linear",
    "schedule_config": {"total_curriculum_step": 10, "difficulty_step": 8},
}


def pad(batch):
    return nn.utils.rnn.pad_sequence(batch, batch_first=True)


def engine_of(model, config, **options):
    engine, *_ = deepspeed.initialize(model=model, config=BATCH | SGD | config, **options)
    if not isinstance(engine, DataAnswers):
        engine.__class__ = type("AnsweringEngine", (DataAnswers, type(engine)), {})
    return engine


class Line(nn.Module):
    """Remembers the keywords it was called with."""

    def __init__(self, layers=1):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(1, 1) for _ in range(layers))
        self.seen = []

    def forward(self, x, **kwargs):
        self.seen.append({"shape": tuple(x.shape), **kwargs})
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def train(engine, batches):
    for batch in batches:
        engine.backward(engine(batch))
        engine.step()


def dynamic_config(folder, **changes):
    dynamic = {
        "enabled": True,
        "max_tokens": 20,
        "metrics_path": folder,
        "lr_scaling_method": "linear",
        "sentence_picking_order": "random",
        "verbose": True,
    }
    sampling = {"num_workers": 0, "dynamic_batching": dynamic | changes}
    return {"data_efficiency": {"enabled": True, "seed": 42, "data_sampling": sampling}}


def dynamic_parts(folder, **changes):
    from deepspeed.runtime.data_pipeline.data_sampling.variable_batch_size_and_lr import (
        get_dataloader_and_lr_scheduler_for_variable_batch_size_deepspeed,
    )

    engine = engine_of(Line(), dynamic_config(folder, **changes))
    loader, schedule, _ = get_dataloader_and_lr_scheduler_for_variable_batch_size_deepspeed(
        dataset=DATA,
        engine=engine,
        dataloader_collate_fn=pad,
        sample_padding_fn=lambda x, n: nn.functional.pad(x, (0, 0, 0, n - len(x))),
        batch_seqlens_fn=lambda batch: (batch[..., 0] != 0).sum(1),
    )
    engine.lr_scheduler = schedule
    return engine, loader, schedule


def dynamic(folder, **changes):
    engine, loader, schedule = dynamic_parts(folder, **changes)
    rates, weights = [], []
    for _ in range(2):
        schedule.step(0)
        for batch in loader:
            rates.append(engine.get_lr()[0])
            engine.backward(engine(batch), weight=batch.numel())
            engine.step()
    weights = engine.module.layers[0].weight.tolist()
    return rates, engine.module.seen, weights, loader.plan.batch_sizes.tolist()


@pytest.mark.parametrize("world_size", [1, 2])
def test_dynamic_batches_stay_in_budget_and_move_the_rate(tmp_path, world_size):
    results = run_ranks(dynamic, world_size, str(tmp_path))
    for rates, seen, _, sizes in results:
        assert max(call["shape"][0] * call["shape"][1] for call in seen) <= 40
        assert {round(rate / 1e-3 * 16) for rate in rates} >= set(sizes)
        assert rates == results[0][0]
    assert (tmp_path / "seqlen/seqlen_sample_to_metric.idx").exists()


def test_results_of_dynamic_batches_do_not_depend_on_the_number_of_ranks(tmp_path):
    one, two = (run_ranks(dynamic, world, str(tmp_path)) for world in (1, 2))
    assert one[0][3] == two[0][3]
    np.testing.assert_allclose(one[0][2], two[0][2], rtol=1e-5)


def test_one_shape_a_batch_where_the_pipeline_needs_it(tmp_path):
    same = {
        "required_microbatches_of_same_sizes": True,
        "required_microbatches_of_same_lengths": True,
    }
    ((_, seen, _, _), *_) = run_ranks(dynamic, 2, str(tmp_path), **same)
    shapes = [call["shape"] for call in seen]
    steps = [set(shapes[at : at + 4]) for at in range(0, len(shapes), 4)]
    assert {len(step) for step in steps} == {1}


def dynamic_steps(parts, number):
    """Up to `number` steps from where the loader is; what each saw and its rate."""
    engine, loader, schedule = parts
    schedule.step(0)
    seen, steps = [], engine.gradient_accumulation_steps()
    for micro, batch in zip(range(number * steps), loader, strict=False):
        seen.append((tuple(batch.shape), float(batch.sum()), engine.get_lr()[0]))
        engine.backward(engine(batch))
        engine.step()
        assert micro < number * steps
    return seen


def dynamic_resume(folder):
    whole = dynamic_steps(dynamic_parts(folder), 6)
    first = dynamic_parts(folder)
    seen = dynamic_steps(first, 2)
    first[0].save_checkpoint(f"{folder}/checkpoint")
    second = dynamic_parts(folder)
    second[0].load_checkpoint(f"{folder}/checkpoint")
    return whole, seen + dynamic_steps(second, 4)


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_checkpoint_resumes_dynamic_batches_in_the_middle_of_an_epoch(tmp_path, world_size):
    for whole, resumed in run_ranks(dynamic_resume, world_size, str(tmp_path)):
        assert resumed == whole


def curriculum(folder):
    engine = engine_of(Line(), {"curriculum_learning": {"enabled": True, **RISE}})
    train(engine, [torch.ones(2, 1)] * 24)
    engine.save_checkpoint(folder)
    again = engine_of(Line(), {"curriculum_learning": {"enabled": True, **RISE}})
    again.load_checkpoint(folder)
    train(again, [torch.ones(2, 1)] * 8)
    first, second = engine.module.seen, again.module.seen
    return [[call["curriculum_seqlen"] for call in seen[::8]] for seen in (first, second)]


def test_curriculum_length_reaches_forward_and_resumes(tmp_path):
    assert run_ranks(curriculum, 1, str(tmp_path)) == [[[8, 16, 24], [24]]]


def refusal(config):
    class Plain(nn.Linear):
        def forward(self, input):
            return super().forward(input)

    with pytest.raises(Exception) as caught:
        engine_of(Plain(1, 1), config)
    return str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"curriculum_learning": {"enabled": True, **RISE}}, "takes no curriculum_seqlen"),
        ({"progressive_layer_drop": {"enabled": True}}, "takes no progressive_layer_drop"),
        ({"curriculum_learning": {"enabled": True}}, "curriculum_learning: a curriculum needs"),
        ({"progressive_layer_drop": {"enabled": True, "theta": 2}}, "theta"),
        (
            {
                "data_efficiency": {
                    "enabled": True,
                    "data_routing": {"random_ltd": {"enabled": True}},
                }
            },
            "total_layer_num",
        ),
    ],
)
def test_a_model_or_section_that_lacks_something_is_one_clear_error(config, message):
    assert message in run_ranks(refusal, 1, config)[0]


def layer_drop():
    engine = engine_of(
        Line(), {"progressive_layer_drop": {"enabled": True, "theta": 0.5, "gamma": 0.1}}
    )
    train(engine, [torch.ones(2, 1)] * 24)
    return [call["pld_theta"] for call in engine.module.seen[::8]], engine.get_pld_theta()


def test_theta_reaches_forward_and_falls():
    seen, now = run_ranks(layer_drop, 1)[0]
    assert seen == pytest.approx([0.5 * np.exp(-0.1 * k) + 0.5 for k in range(3)])
    assert now == pytest.approx(0.5 * np.exp(-0.3) + 0.5)


LTD = {
    "enabled": True,
    "total_layer_num": 4,
    "random_ltd_layer_num": 2,
    "random_ltd_layer_id": [1, 2],
    "model_mask_name": "attention_mask",
    "model_type": "decoder",
    "hidden_state_order": "batch_seq_dim",
    "random_ltd_schedule": {
        "min_value": 4,
        "max_value": 8,
        "schedule_type": "fixed_linear",
        "schedule_config": {"require_steps": 2, "seq_per_step": 2},
    },
}


def random_ltd(folder):
    from deepspeed.runtime.data_pipeline.data_routing.helper import (
        convert_to_random_ltd,
        save_without_random_ltd,
    )

    routing = {"enabled": True, "data_routing": {"enabled": True, "random_ltd": LTD}}
    engine = engine_of(Line(layers=4), {"data_efficiency": routing})
    engine = convert_to_random_ltd(engine, nn.Linear)
    lengths = []
    for layer in engine.module.layers:
        layer.random_ltd_layer.register_forward_pre_hook(
            lambda _, args: lengths.append(args[0].shape[1])
        )
    kept = []
    for _ in range(3):
        kept.append(engine.random_ltd_scheduler.get_current_seq())
        train(engine, [torch.ones(2, 8, 1)] * 8)
    return kept, lengths[:: 4 * 8] + lengths[1 :: 4 * 8], sorted(save_without_random_ltd(engine))


def test_random_ltd_drops_tokens_in_the_middle_layers(tmp_path):
    kept, lengths, names = run_ranks(random_ltd, 1, str(tmp_path))[0]
    assert kept == [4, 6, 8]
    assert lengths == [8, 8, 8, 4, 6, 8]
    assert names == sorted(Line(layers=4).state_dict())


def sampling_config(folder):
    metric = {
        "index_to_sample_path": str(metric_prefix(folder, "len", "index_to_sample")),
        "index_to_metric_path": str(metric_prefix(folder, "len", "index_to_metric")),
        "difficulty_type": "value",
        "clustering_type": "schedule_based",
        "min_difficulty": 4,
        "max_difficulty": 20,
        "schedule_type": "fixed_linear",
        "schedule_config": {"total_curriculum_step": 8, "difficulty_step": 1},
    }
    curriculum = {"enabled": True, "curriculum_metrics": {"len": metric}}
    sampling = {"enabled": True, "num_epochs": 10, "curriculum_learning": curriculum}
    return {"data_efficiency": {"enabled": True, "data_sampling": sampling}}


def sample(folder):
    def build():
        engine = engine_of(Line(), sampling_config(folder))
        engine.training_dataloader = engine.curriculum_io(DATA, pad, drop_last=True)
        return engine

    whole, first = build(), build()
    steps = 8 // dist.get_world_size()
    train(whole, take(whole.training_dataloader, 6 * steps))
    train(first, take(first.training_dataloader, 3 * steps))
    first.save_checkpoint(f"{folder}/checkpoint")
    second = build()
    second.load_checkpoint(f"{folder}/checkpoint")
    train(second, take(second.training_dataloader, 3 * steps))
    return [[call["shape"] for call in engine.module.seen] for engine in (whole, first, second)]


def take(loader, number):
    return (batch for _, batch in zip(range(number), loader, strict=False))


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_general_curriculum_draws_easy_samples_first_and_resumes(tmp_path, world_size):
    write_single(tmp_path, "len", np.asarray(LENGTHS))
    for whole, first, second in run_ranks(sample, world_size, str(tmp_path)):
        assert first + second == whole
        assert max(shape[1] for shape in first[: 8 // world_size]) <= 6
        assert max(shape[1] for shape in whole) > 12
