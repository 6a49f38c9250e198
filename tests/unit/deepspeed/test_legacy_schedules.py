"""The schedules under the import path that programs know."""

from __future__ import annotations

import importlib

import pytest
import torch

import deepspeed

CONSTANTS = {
    "ONE_CYCLE": "OneCycle",
    "WARMUP_LOG_RATE": "log",
    "WARMUP_MAX_LR": "warmup_max_lr",
    "TOTAL_NUM_STEPS": "total_num_steps",
}


@pytest.fixture
def schedules():
    assert deepspeed.__version__
    return importlib.import_module("deepspeed.runtime.lr_schedules")


def test_class_names_are_the_valid_ones(schedules):
    for name in schedules.VALID_LR_SCHEDULES:
        assert getattr(schedules, name).__name__ == name


@pytest.mark.parametrize("name", CONSTANTS)
def test_constants_keep_their_values(schedules, name):
    assert getattr(schedules, name) == CONSTANTS[name]


def test_helpers_work(schedules):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    assert schedules.update_lr(optimizer.param_groups, [0.5]) == [0.5]
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert schedules.get_torch_optimizer(optimizer) is optimizer
    wrapper = type("Wrapper", (), {"optimizer": optimizer})()
    assert schedules.get_torch_optimizer(wrapper) is optimizer
    with pytest.raises(TypeError, match="int is not"):
        schedules.get_torch_optimizer(3)


def test_a_schedule_built_by_its_old_name_trains(schedules):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = schedules.WarmupLR(optimizer, warmup_num_steps=2)
    for _ in range(3):
        schedule.step()
    assert schedule.get_last_lr() == [0.1]
