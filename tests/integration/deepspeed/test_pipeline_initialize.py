"""Pipelines through `deepspeed.initialize`."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

import deepspeed
from deepspeed.pipe import LayerSpec, PipelineModule
from deepspeed.runtime.pipe import schedule as schedules
from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology
from ds_core.errors import ConfigError
from support.pipelines import Case, batches, gpt_layers, gpt_loss, plain_run
from support.ranks import run_ranks

CASE = Case("gpt", 2, "1f1b", 2)


def config(**more):
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.1,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}},
    } | more


def gpt(stages, **arguments):
    return PipelineModule(
        gpt_layers(),
        num_stages=stages,
        loss_fn=gpt_loss,
        seed_layers=True,
        partition_method="uniform",
        **arguments,
    )


def train(stages, settings, steps=3):
    model = gpt(stages, chunks=2 if "interleaved" in str(settings) else 1)
    engine, optimizer, loader, schedule = deepspeed.initialize(
        model=model,
        config=settings,
        model_parameters=[p for p in model.parameters() if p.requires_grad],
    )
    assert optimizer is engine.optimizer
    assert (loader, schedule) == (None, None)
    replica = engine.grid.get_data_parallel_id()
    losses = [engine.train_batch(batches(CASE, step, replica)).item() for step in range(steps)]
    return losses, engine.get_global_grad_norm(), engine.global_steps


@pytest.mark.parametrize(
    ("world", "stages", "more"),
    [
        (2, 2, {}),
        (4, 2, {}),
        (4, 2, {"zero_optimization": {"stage": 1}}),
        (2, 2, {"pipeline": {"schedule": "zb-h1", "stages": 2}}),
        (2, 2, {"pipeline": {"schedule": "interleaved"}}),
        (2, 2, {"pipeline": {"activation_checkpoint_interval": 1}}),
        (
            2,
            2,
            {
                "pipeline": {"activation_checkpoint_interval": 2, "schedule": "zb-h1"},
                "activation_checkpointing": {"cpu_checkpointing": True},
            },
        ),
    ],
    ids=["two stages", "replicas", "zero-1", "zb-h1", "interleaved", "recomputed", "on the host"],
)
def test_json_trains_like_one_process(world, stages, more):
    plain = plain_run(CASE, world // stages)
    for losses, norm, steps in run_ranks(train, world, stages, config(**more)):
        torch.testing.assert_close(losses, plain.losses, rtol=1e-5, atol=1e-6)
        assert norm == pytest.approx(plain.norms[-1], rel=1e-4)
        assert steps == 3


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_low_precision_follows_fp32(name):
    plain = plain_run(CASE)
    section = {"enabled": True} | ({"initial_scale_power": 6} if name == "fp16" else {})
    for losses, _, _ in run_ranks(train, 2, 2, config(**{name: section})):
        torch.testing.assert_close(losses, plain.losses, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"zero_optimization": {"stage": 2}}, "a pipeline takes 0 or 1"),
        ({"pipeline": {"stages": 4}}, "pipeline.stages is 4, the PipelineModule was made with 1"),
        ({"pipeline": {"partition": "parameters"}}, "was made with 'uniform'"),
        ({"pipeline": {"stagse": 1}}, "stages"),
    ],
)
def test_settings_that_do_not_fit_are_named(more, said):
    with pytest.raises(ConfigError, match=said):
        run_alone(more)


def run_alone(more):
    return deepspeed.initialize(model=gpt(1), config=config(**more))


def save_and_export(folder):
    engine, *_ = deepspeed.initialize(model=gpt(2), config=config())
    engine.train_batch(batches(CASE, 0, 0))
    engine.save_checkpoint(folder, client_state={"seen": 3})
    engine.save_16bit_model(folder)
    return engine.train_batch(batches(CASE, 1, 0)).item()


def resume(folder):
    engine, *_ = deepspeed.initialize(model=gpt(1, base_seed=5), config=config())
    _, client = engine.load_checkpoint(folder)
    return client["seen"], engine.global_steps, engine.train_batch(batches(CASE, 1, 0)).item()


def test_a_checkpoint_of_two_stages_goes_on_in_one(tmp_path):
    expected = run_ranks(save_and_export, 2, tmp_path)[0]
    seen, steps, loss = run_ranks(resume, 1, tmp_path)[0]
    assert (seen, steps) == (3, 1)
    assert loss == pytest.approx(expected, rel=1e-6)
    exported = torch.load(tmp_path / "pytorch_model.bin")
    assert {"tied_modules.embed.weight", "1.out.weight", "6.bias"} <= exported.keys()


def train_from_data_set():
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(16, 4, generator=generator)
    data = torch.utils.data.TensorDataset(inputs, inputs.clone())
    layers = [LayerSpec(nn.Linear, 4, 4), LayerSpec(nn.Linear, 4, 4)]
    torch.manual_seed(dist.get_rank())  # stages draw different numbers
    model = PipelineModule(layers, num_stages=2, loss_fn=nn.functional.mse_loss)
    settings = config(optimizer={"type": "Adam", "params": {"lr": 0.1}})
    engine, _, loader, _ = deepspeed.initialize(model=model, training_data=data, config=settings)
    return len(loader), [engine.train_batch().item() for _ in range(30)]


def test_a_data_set_is_read_in_the_same_order_by_all_stages():
    for batches_an_epoch, losses in run_ranks(train_from_data_set, 2):
        assert batches_an_epoch == 8
        assert sum(losses[-4:]) < 0.25 * sum(losses[:4])


class Count(schedules.PipeInstruction):
    pass


class CountingSchedule(schedules.TrainSchedule):
    def steps(self):
        for commands in super().steps():
            yield [*commands, Count(amount=2)]


def extend():
    engine, *_ = deepspeed.initialize(model=gpt(2), config=config())
    counted = []
    engine._INSTRUCTION_MAP[Count] = lambda engine, amount: counted.append(amount)
    engine.set_dataiterator(batches(CASE, 0, 0))
    engine._exec_schedule(CountingSchedule(2, engine.num_stages, engine.stage_id))
    del engine._INSTRUCTION_MAP[Count]
    engine.reset_activation_shape()
    losses = [engine.agg_train_loss.item()]
    return [*losses, engine.train_batch(batches(CASE, 1, 0)).item()], len(counted)


def test_programs_add_instructions_and_schedules_of_their_own():
    plain = plain_run(CASE)
    for losses, counted in run_ranks(extend, 2):
        torch.testing.assert_close(losses, plain.losses[:2], rtol=1e-5, atol=1e-6)
        assert counted >= 4


def three_axes():
    topology = PipeModelDataParallelTopology(num_pp=2, num_mp=2, num_dp=1)
    model = PipelineModule(
        gpt_layers(),
        topology=topology,
        loss_fn=gpt_loss,
        seed_layers=True,
        partition_method="uniform",
    )
    engine, *_ = deepspeed.initialize(model=model, config=config())
    grid = engine.grid
    assert grid.stage_to_global(1, model=0) == 2
    assert grid.get_model_parallel_world_size() == 4
    losses = [engine.train_batch(batches(CASE, step, 0)).item() for step in range(3)]
    return losses, engine.get_global_grad_norm()


def test_pieces_of_layers_count_once_in_the_norm():
    plain = plain_run(CASE)
    for losses, norm in run_ranks(three_axes, 4):
        torch.testing.assert_close(losses, plain.losses, rtol=1e-5, atol=1e-6)
        assert norm == pytest.approx(plain.norms[-1], rel=1e-4)
