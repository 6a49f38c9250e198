"""ZeRO through the meta-package, as programs use it."""

from __future__ import annotations

import importlib

import pytest
import torch
import torch.distributed as dist
from torch import nn

import deepspeed
from support.ranks import run_ranks
from support.zero_models import Reference, batch

NAMES = {
    "deepspeed.zero": ("Init", "GatheredParameters", "register_external_parameter", "TiledLinear"),
    "deepspeed.runtime.zero": ("Init", "GatheredParameters"),
    "deepspeed.runtime.zero.partition_parameters": (
        "ZeroParamStatus",
        "_orig_torch_arange",
        "get_accelerator",
        "zero_wrapper_for_fp_tensor_constructor",
    ),
    "deepspeed.runtime.zero.config": ("ZeroStageEnum", "DeepSpeedZeroConfig"),
    "deepspeed.runtime.zero.offload_config": ("OffloadDeviceEnum", "OffloadStateTypeEnum"),
    "deepspeed.runtime.zero.stage3": ("estimate_zero3_model_states_mem_needs_all_live",),
    "deepspeed.runtime.zero.stage_1_and_2": ("estimate_zero2_model_states_mem_needs",),
    "deepspeed.utils": ("set_z3_leaf_modules", "safe_get_full_grad", "safe_get_full_fp32_param"),
    "deepspeed.utils.zero_to_fp32": ("get_fp32_state_dict_from_zero_checkpoint", "get_optim_files"),
    "deepspeed.utils.tensor_fragment": ("safe_set_full_optimizer_state",),
}


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in NAMES.items() for n in names])
def test_name_is_found(module, name):
    assert getattr(importlib.import_module(module), name) is not None


def config(zero: dict[str, object]) -> dict[str, object]:
    return {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}},
        "zero_optimization": {"stage3_param_persistence_threshold": 0, **zero},
    }


def train(settings: dict[str, object], in_shares: bool) -> tuple[list[float], list[str]]:
    torch.manual_seed(0)
    module = importlib.import_module("deepspeed.runtime.zero.partition_parameters")
    calls: list[str] = []
    original = module.zero_wrapper_for_fp_tensor_constructor

    def counting(fn, *args, **kwargs):
        calls.append("arange" if fn is module._orig_torch_arange else fn.__name__)
        return original(fn, *args, **kwargs)

    module.zero_wrapper_for_fp_tensor_constructor = counting
    try:
        with deepspeed.zero.Init(config_dict_or_path=settings, enabled=in_shares):
            model = Reference()
    finally:
        module.zero_wrapper_for_fp_tensor_constructor = original
    engine, *_ = deepspeed.initialize(model=model, config=settings)
    losses = []
    for step in range(3):
        loss = engine(*batch(step, dist.get_rank()))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    engine.destroy()
    return losses, calls


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("offload", ["none", "cpu", "nvme"])
def test_losses_equal_those_of_stage_0(stage, offload, tmp_path):
    expected = run_ranks(train, 2, config({"stage": 0}), False)
    device = {"device": offload, "nvme_path": str(tmp_path)}
    settings = config({"stage": stage, "offload_optimizer": device})
    for (losses, _), (plain, _) in zip(run_ranks(train, 2, settings, False), expected, strict=True):
        assert losses == pytest.approx(plain, rel=1e-5)


def test_a_program_can_wrap_the_constructors_of_init():
    for losses, calls in run_ranks(train, 2, config({"stage": 3}), True):
        assert "arange" in calls
        assert len(losses) == 3


def edit_on_rank_one(stage, precision):
    torch.manual_seed(0)
    config = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}}
    config |= {"optimizer": {"type": "SGD", "params": {"lr": 1.0}}} | precision
    engine, *_ = deepspeed.initialize(model=nn.Linear(3, 3), config=config)
    weight = engine.module.weight
    with deepspeed.zero.GatheredParameters(engine.module.parameters(), modifier_rank=1):
        if dist.get_rank() == 1:
            weight.data.fill_(2.0)
    engine.backward(engine(torch.zeros(1, 3, dtype=weight.dtype)).sum())
    engine.step()
    with deepspeed.zero.GatheredParameters([weight]):
        return weight.detach().float().clone()


@pytest.mark.parametrize("precision", [{}, {"bf16": {"enabled": True}}], ids=["fp32", "bf16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_an_edit_on_one_rank_reaches_all_and_the_masters_at_every_stage(stage, precision):
    for weight in run_ranks(edit_on_rank_one, 2, stage, precision):
        assert torch.equal(weight, torch.full((3, 3), 2.0))
