"""The arguments that programs add to their parsers."""

from __future__ import annotations

import argparse

import pytest

from deepspeed.arguments import (
    add_config_arguments,
    add_tuning_arguments,
    get_config_from_args,
    get_lr_from_config,
    override_params,
)


def parse(*argv: str, add=add_tuning_arguments) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1.0)
    assert add(parser) is parser
    return parser.parse_args(argv)


def test_config_arguments_are_off_by_default() -> None:
    assert vars(parse(add=add_config_arguments)) == {
        "lr": 1.0,
        "deepspeed": False,
        "deepspeed_config": None,
        "deepscale": False,
        "deepscale_config": None,
    }


def test_config_arguments_are_read() -> None:
    args = parse("--deepspeed", "--deepspeed_config", "ds.json", add=add_config_arguments)
    assert (args.deepspeed, args.deepspeed_config) == (True, "ds.json")


@pytest.mark.parametrize(
    ("argv", "params"),
    [
        (
            ("LRRangeTest", "--lr_range_test_staircase", "true"),
            {
                "lr_range_test_min_lr": 0.001,
                "lr_range_test_step_rate": 1.0,
                "lr_range_test_step_size": 1000,
                "lr_range_test_staircase": True,
            },
        ),
        (
            ("OneCycle", "--cycle_momentum", "--cycle_second_step_size", "5"),
            {
                "cycle_first_step_size": 1000,
                "cycle_second_step_size": 5,
                "decay_step_size": 1000,
                "cycle_min_lr": 0.01,
                "cycle_max_lr": 0.1,
                "decay_lr_rate": 0.0,
                "cycle_min_mom": 0.8,
                "cycle_max_mom": 0.9,
                "decay_mom_rate": 0.0,
                "cycle_momentum": True,
            },
        ),
        (
            ("WarmupLR", "--warmup_max_lr", "0.5"),
            {
                "warmup_min_lr": 0,
                "warmup_max_lr": 0.5,
                "warmup_num_steps": 1000,
                "warmup_type": "log",
            },
        ),
        (
            ("WarmupCosineLR", "--warmup_type", "linear"),
            {
                "warmup_min_ratio": 0.01,
                "cos_min_ratio": 0.01,
                "warmup_num_steps": 1000,
                "warmup_type": "linear",
            },
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_tuning_arguments_become_a_scheduler_section(argv, params) -> None:
    args = parse("--lr_schedule", *argv)
    assert get_config_from_args(args) == ({"type": argv[0], "params": params}, None)


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        ((), "--lr_schedule not specified on command line"),
        (("--lr_schedule", "Foo"), "Foo is not a supported LR schedule; known: LRRangeTest"),
    ],
)
def test_missing_or_unknown_schedule_gives_a_reason(argv, reason) -> None:
    config, why = get_config_from_args(parse(*argv))
    assert config is None
    assert why is not None
    assert why.startswith(reason)


@pytest.mark.parametrize(
    ("config", "rate"),
    [
        ({"type": "WarmupLR", "params": {"warmup_max_lr": 0.5}}, 0.5),
        ({"type": "OneCycle", "params": {"cycle_max_lr": 0.1}}, 0.1),
        ({"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 0.2}}, 0.2),
        ({"type": "WarmupLR", "params": {}}, None),
        ({"type": "WarmupCosineLR", "params": {}}, None),
        ({"type": "Foo", "params": {}}, None),
        ({"params": {}}, None),
    ],
)
def test_rate_of_a_scheduler_section(config, rate) -> None:
    found, why = get_lr_from_config(config)
    assert found == rate
    assert bool(why) == (rate is None)


@pytest.mark.parametrize(("text", "value"), [("False", False), ("1", True)])
def test_staircase_means_what_it_says(text, value) -> None:
    assert parse("--lr_range_test_staircase", text).lr_range_test_staircase is value


def test_staircase_of_neither_is_refused(capsys) -> None:
    with pytest.raises(SystemExit):
        parse("--lr_range_test_staircase", "maybe")
    assert "'maybe' is neither true nor false" in capsys.readouterr().err


def test_override_params_copies_every_schedule() -> None:
    params = {"kept": 1}
    override_params(parse("--warmup_num_steps", "7"), params)
    assert (params["kept"], params["warmup_num_steps"], params["cycle_max_lr"]) == (1, 7, 0.1)
