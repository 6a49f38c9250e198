"""`deepspeed.initialize` takes what programs pass, and trains like plain PyTorch."""

from __future__ import annotations

import argparse
import base64
import gc
import json
import logging
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn

import deepspeed
from ds_core.errors import ConfigError, RankMismatchError, StateError
from support.ranks import run_ranks

ADAMW = {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}}
CONFIG = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0, "optimizer": ADAMW}


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))


def batch(step, rank=0):
    generator = torch.Generator().manual_seed(10 * step + rank)
    return torch.randn(2, 4, generator=generator)


def train(engine, steps=3):
    for step in range(steps):
        loss = engine(batch(step)).square().mean()
        engine.backward(loss)
        engine.step()
    return [param.detach().float().clone() for param in engine.module.parameters()]


def train_plain(steps=3, make=lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1)):
    net = make_net()
    optimizer = make(net.parameters())
    for step in range(steps):
        net(batch(step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(net.parameters())


def assert_same(ours, plain, tolerance=1e-6):
    for mine, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(mine, other.detach(), rtol=tolerance, atol=tolerance)


def as_base64(config):
    return base64.urlsafe_b64encode(json.dumps(config).encode()).decode()


WAYS = {
    "config": lambda config, path: {"config": config},
    "config_params": lambda config, path: {"config_params": config},
    "path": lambda config, path: {"config": str(path)},
    "namespace": lambda config, path: {"args": argparse.Namespace(deepspeed_config=str(path))},
    "dict as args": lambda config, path: {"args": {"local_rank": 0}, "config": config},
    "base64": lambda config, path: {
        "args": argparse.Namespace(deepspeed_config=as_base64(config), local_rank=0)
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_the_configuration_arrives_by_every_way(way, tmp_path):
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(CONFIG))
    engine, optimizer, loader, schedule = deepspeed.initialize(
        model=make_net(), **WAYS[way](CONFIG, path)
    )
    assert_same(train(engine), train_plain())
    assert (loader, schedule) == (None, None)
    assert optimizer is engine.optimizer


PARAMETERS = {
    "none": lambda net: None,
    "generator": lambda net: net.parameters(),
    "filter": lambda net: filter(lambda p: p.requires_grad, net.parameters()),
    "named": lambda net: net.named_parameters(),
    "groups": lambda net: [
        {"params": list(net[0].parameters())},
        {"params": list(net[2].parameters())},
    ],
}


@pytest.mark.parametrize("kind", PARAMETERS)
def test_parameters_arrive_in_every_form(kind):
    net = make_net()
    engine, *_ = deepspeed.initialize(
        model=net, model_parameters=PARAMETERS[kind](net), config=CONFIG
    )
    assert_same(train(engine), train_plain())
    assert len(engine.optimizer.param_groups) == (2 if kind == "groups" else 1)


OPTIMIZERS = {
    "object": lambda net: torch.optim.SGD(net.parameters(), lr=0.1),
    "function": lambda net: lambda params: torch.optim.SGD(params, lr=0.1),
}
SCHEDULES = {
    "none": lambda optimizer: None,
    "function": lambda optimizer: lambda made: torch.optim.lr_scheduler.ExponentialLR(made, 0.5),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers_and_schedules_of_the_client_are_used(kind, schedule):
    net = make_net()
    config = {key: value for key, value in CONFIG.items() if key != "optimizer"}
    engine, _, _, made = deepspeed.initialize(
        model=net,
        optimizer=OPTIMIZERS[kind](net),
        lr_scheduler=SCHEDULES[schedule](None),
        config=config,
    )
    train(engine)
    assert engine.get_lr() == [pytest.approx(0.1 if made is None else 0.1 * 0.5**3)]


def test_a_schedule_made_over_the_clients_optimizer_moves_it():
    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    config = {key: value for key, value in CONFIG.items() if key != "optimizer"}
    engine, *_ = deepspeed.initialize(
        model=net,
        optimizer=optimizer,
        lr_scheduler=schedule,
        config={**config, "bf16": {"enabled": True}},
    )
    for _ in range(2):
        engine.backward(engine(torch.ones(1, 4, dtype=torch.bfloat16)).float().mean())
        engine.step()
    assert engine.get_lr() == [0.025]


def test_an_optimizer_given_twice_warns_and_the_argument_wins(caplog):
    net = make_net()
    engine, *_ = deepspeed.initialize(
        model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), config=CONFIG
    )
    assert engine.get_lr() == [0.1]
    assert "the one that was given is used" in caplog.text


def test_a_program_that_only_steps_the_returned_optimizer_trains_the_same():
    engine, optimizer, _, _ = deepspeed.initialize(model=make_net(), config=CONFIG)
    for step in range(3):
        engine.backward(engine(batch(step)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    assert_same(engine.module.parameters(), train_plain())


def test_the_optimizer_looks_like_one():
    engine, optimizer, _, _ = deepspeed.initialize(model=make_net(), config=CONFIG)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert (optimizer.overflow, optimizer.loss_scale) == (False, 1.0)
    optimizer.param_groups[0]["lr"] = 0.5
    assert engine.get_lr() == [0.5]
    saved = optimizer.state_dict()
    optimizer.load_state_dict(saved)
    assert optimizer.optimizer is engine.strategy.optimizer


def test_an_engine_without_an_optimizer_evaluates():
    config = {"train_micro_batch_size_per_gpu": 1}
    engine, optimizer, _, _ = deepspeed.initialize(model=make_net(), config=config)
    assert optimizer is None
    assert engine.eval()(batch(0)).shape == (2, 1)
    engine.backward(engine(batch(0)).mean())
    with pytest.raises(Exception, match="no optimizer"):
        engine.step()


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_low_precision_keeps_fp32_masters_of_the_original_values(dtype):
    net = make_net()
    exact = net[0].weight.detach().clone()
    engine, *_ = deepspeed.initialize(model=net, config={**CONFIG, dtype: {"enabled": True}})
    assert torch.equal(engine.strategy.held(net[0].weight), exact)
    assert net[0].weight.dtype == (torch.float16 if dtype == "fp16" else torch.bfloat16)


@pytest.mark.parametrize(
    ("fp16", "expected"),
    [({"loss_scale": 128}, 128), ({}, 2.0**16), ({"initial_scale_power": 8}, 256)],
)
def test_loss_scales_are_those_of_the_configuration(fp16, expected):
    config = {**CONFIG, "fp16": {"enabled": True, **fp16}}
    engine, optimizer, _, _ = deepspeed.initialize(model=make_net(), config=config)
    assert engine.loss_scale() == optimizer.cur_scale == expected


def test_inputs_are_cast_if_asked():
    config = {**CONFIG, "fp16": {"enabled": True, "auto_cast": True}}
    engine, *_ = deepspeed.initialize(model=make_net(), config=config)
    assert engine(batch(0)).dtype == engine.eval()(batch(0)).dtype == torch.float16


@pytest.mark.parametrize(
    ("formats", "inputs", "words"),
    [
        (
            {"bf16": {"enabled": True}},
            batch(0),
            ["args[0] is torch.float32", "x.to(torch.bfloat16"],
        ),
        ({"fp16": {"enabled": True}}, batch(0), ["args[0] is torch.float32", "fp16.auto_cast"]),
        ({}, batch(0).double(), ["args[0] is torch.float64", "x.to(torch.float32)"]),
    ],
    ids=["bf16", "fp16", "fp64_inputs"],
)
def test_inputs_of_another_format_are_named(formats, inputs, words):
    engine, *_ = deepspeed.initialize(model=make_net(), config={**CONFIG, **formats})
    with pytest.raises(RuntimeError, match="must have the same dtype") as caught:
        engine(inputs)
    assert all(word in str(caught.value) for word in words)


def test_autocast_computes_low_and_keeps_fp32_weights():
    config = {**CONFIG, "torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
    engine, *_ = deepspeed.initialize(model=make_net(), config=config)
    assert engine(batch(0)).dtype == torch.bfloat16
    assert engine.module[0].weight.dtype == torch.float32


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_torch_does_not_take_a_schedule_for_moved_too_early(stage):
    engine, *_ = deepspeed.initialize(
        model=make_net(),
        config={**CONFIG, "zero_optimization": {"stage": stage}},
        lr_scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1),
    )
    for _ in range(2):  # warnings are errors
        engine.backward(engine(batch(0)).square().mean())
        engine.step()


def test_steps_per_print_may_be_infinite():
    engine, *_ = deepspeed.initialize(
        model=make_net(), config={**CONFIG, "steps_per_print": float("inf")}
    )
    assert engine.steps_per_print() is None


def test_training_data_becomes_a_loader_that_repeats():
    data = torch.utils.data.TensorDataset(torch.randn(5, 4), torch.randn(5))
    engine, _, loader, _ = deepspeed.initialize(model=make_net(), training_data=data, config=CONFIG)
    assert [len(batch[0]) for batch in loader] == [2, 2, 1]
    endless = iter(deepspeed.RepeatingLoader(loader))
    assert len([next(endless) for _ in range(7)]) == 7
    assert engine.training_dataloader is loader


def test_batch_sizes_can_change_while_training():
    engine, *_ = deepspeed.initialize(model=make_net(), config=CONFIG)
    engine.set_train_batch_size(8)
    assert engine.get_batch_info() == (8, 2, 4)
    with pytest.raises(ConfigError, match="7 is not a multiple of 2"):
        engine.set_train_batch_size(7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": None, "config": CONFIG}, "expected a torch.nn.Module"),
        ({"model": nn.Linear(1, 1, device="meta"), "config": CONFIG}, "weight is on the meta"),
        ({"model": nn.Linear(1, 1)}, "no configuration"),
        ({"model": nn.Linear(1, 1), "config": CONFIG, "mesh_param": (1, 1)}, "mesh_param"),
        ({"model": nn.Linear(1, 1), "config": CONFIG, "optimizer": 5}, "optimizer is int"),
        ({"model": nn.Linear(1, 1), "config": CONFIG, "optimizer": lambda p: 7}, "returned int"),
        ({"model": nn.Linear(1, 1), "config": CONFIG, "model_parameters": 5}, "is int, expected"),
        ({"model": nn.Linear(1, 1), "config": CONFIG, "model_parameters": []}, "is empty"),
        ({"model": nn.Linear(1, 1), "config": CONFIG, "lr_scheduler": 5}, "expected a schedule"),
        (
            {
                "model": nn.Linear(1, 1),
                "config": CONFIG,
                "model_parameters": nn.Linear(2, 2).parameters(),
            },
            "not in the model",
        ),
        ({"model": nn.Linear(1, 1), "config": ""}, "the configuration is an empty text"),
        ({"model": nn.Linear(1, 1), "args": "ds.json"}, "args is str, expected a namespace"),
        ({"model": nn.Linear(1, 1), "args": ["--x"], "config": CONFIG}, "args is list"),
        ({"model": nn.Linear(1, 1), "config": CONFIG, "distributed_port": "29500"}, "'29500', exp"),
        ({"model": nn.Linear(1, 1), "config": CONFIG, "distributed_port": 70000}, r"1\.\.65535"),
        (
            {"model": nn.Linear(1, 1), "config": CONFIG, "dist_init_required": "no"},
            "'no', expected",
        ),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        deepspeed.initialize(**arguments)


SHORT = {"type": "WarmupDecayLR", "params": {"total_num_steps": 2, "warmup_num_steps": 5}}


def warnings_of_a_short_schedule():
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logging.getLogger().addHandler(handler)
    deepspeed.initialize(model=make_net(), config={**CONFIG, "scheduler": SHORT, "mine": 1})
    level = logging.getLogger("ds_core").level
    return [text for text in records if "fewer" in text or "less" in text or "mine" in text], level


def test_what_concerns_all_ranks_is_said_once():
    (first, level), (second, other) = run_ranks(warnings_of_a_short_schedule, 2)
    assert len(first) == 2
    assert second == []
    assert level == other == logging.NOTSET


def test_twenty_engines_over_one_model_leave_it_as_it_was():
    net = make_net()
    references = []
    for _ in range(20):
        engine, *_ = deepspeed.initialize(model=net, config=CONFIG)
        train(engine, steps=1)
        references.append(weakref.ref(engine))
        engine.destroy()
    del engine, _
    gc.collect()
    assert not any(reference() for reference in references)
    assert all(not param._post_accumulate_grad_hooks for param in net.parameters())
    assert all(param.grad is None for param in net.parameters())


def test_an_engine_is_no_model_for_another():
    engine, *_ = deepspeed.initialize(model=make_net(), config=CONFIG)
    with pytest.raises(ConfigError, match=r"is a DeepSpeedEngine already.*model=engine\.module"):
        deepspeed.initialize(model=engine, config=CONFIG)


def test_a_load_that_finds_no_folder_says_so(tmp_path, caplog):
    engine, *_ = deepspeed.initialize(model=make_net(), config=CONFIG)
    assert engine.load_checkpoint(tmp_path / "none") == (None, None)
    assert engine.load_checkpoint(tmp_path) == (None, None)
    missing, empty = [text for text in caplog.messages if "nothing was loaded" in text]
    assert missing.endswith("none: it does not exist")
    assert empty.endswith("there is no file latest")


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_second_engine_over_a_sharded_model_is_refused_until_the_first_ends(stage):
    net = make_net()
    zero = {"zero_optimization": {"stage": stage}}
    first, *_ = deepspeed.initialize(model=net, config={**CONFIG, **zero})
    with pytest.raises(StateError, match=r"'0.weight' belongs to another engine.*destroy\(\)"):
        deepspeed.initialize(model=net, config=CONFIG)
    train(first, steps=1)
    first.destroy()
    assert train(deepspeed.initialize(model=net, config=CONFIG)[0], steps=1)


def test_a_start_that_fails_leaves_no_hooks():
    net = make_net()
    bad = {**CONFIG, "optimizer": {"type": "AdamW", "params": {"no_such_option": 1}}}
    with pytest.raises(Exception, match="no_such_option"):
        deepspeed.initialize(model=net, config=bad)
    assert all(not param._post_accumulate_grad_hooks for param in net.parameters())


def differ():
    width = 3 if dist.get_rank() else 2
    with pytest.raises(RankMismatchError, match=r"ranks disagree on the model: '0\.weight'"):
        deepspeed.initialize(model=nn.Sequential(nn.Linear(width, 1)), config=CONFIG)


def test_ranks_with_different_models_are_named():
    run_ranks(differ, 2)


def differ_in_configuration():
    config = {**CONFIG, "optimizer": {"type": "SGD", "params": {"lr": 0.1 + dist.get_rank()}}}
    with pytest.raises(RankMismatchError, match="ranks disagree on the configuration: 'optimizer'"):
        deepspeed.initialize(model=nn.Linear(1, 1), config=config)


def test_ranks_with_different_settings_are_named():
    run_ranks(differ_in_configuration, 2)


@pytest.mark.parametrize("name", ["AdamW", "Adam", "SGD", "Adagrad"])
def test_models_in_float64_train_with_torch_optimizers(name):
    config = {**CONFIG, "optimizer": {"type": name, "params": {"lr": 0.01}}}
    engine, *_ = deepspeed.initialize(model=make_net().double(), config=config)
    engine.backward(engine(torch.ones(1, 4, dtype=torch.float64)).mean())
    assert not engine.step().skipped
    assert engine.module[0].weight.dtype == torch.float64


@pytest.mark.parametrize("make", [torch.optim.Adafactor, torch.optim.Muon])
def test_optimizers_that_need_whole_matrices_are_refused_where_these_are_cut(make):
    net = nn.Linear(4, 4, bias=False)
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 1}}
    with pytest.raises(ConfigError, match="looks at whole parameters"):
        deepspeed.initialize(model=net, optimizer=make(net.parameters()), config=config)


def weights_after_start():
    torch.manual_seed(dist.get_rank())
    net = nn.Linear(3, 3)
    deepspeed.initialize(model=net, config={**CONFIG, "train_batch_size": 4})
    return net.weight.detach()


def test_all_ranks_start_from_the_weights_of_rank_zero():
    first, second = run_ranks(weights_after_start, 2)
    assert torch.equal(first, second)
