"""Small names of the old interface do what they say."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

import deepspeed
from deepspeed.checkpoint.utils import clone_tensors_for_torch_save
from deepspeed.runtime import utils
from ds_core.errors import ConfigError
from support.ranks import run_ranks

CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
}


def test_copies_for_saving_keep_ties_and_drop_the_rest_of_a_storage():
    whole = torch.arange(10.0)
    weight = nn.Parameter(torch.ones(2, 2))
    copied = clone_tensors_for_torch_save({"a": weight, "b": [weight.data], "view": whole[:2]})
    assert copied["a"].data_ptr() == copied["b"][0].data_ptr() != weight.data_ptr()
    assert copied["view"].untyped_storage().nbytes() == 8


def test_small_helpers():
    assert utils.prefix_sum_inc([1, 2, 3]) == [1, 3, 6]
    assert utils.get_only_unique_item([2, 2]) == 2
    assert utils.get_tensor_bytes({"a": torch.zeros(3), "b": [torch.zeros(2), 1]}) == 20
    assert float(utils.get_global_norm_of_tensors([torch.tensor([3.0, 4.0])])) == 5.0
    assert deepspeed.is_compile_supported()


def log_collectives():
    from deepspeed import comm

    with pytest.raises(ConfigError, match="comms_logger"):
        comm.log_summary()
    comm.configure(enabled=True)
    for _ in range(3):
        comm.all_reduce(torch.ones(4))
    rows = comm.log_summary(show_straggler=True, return_dict=True)
    seen = comm.get_logged_comm_ops(), comm.get_comm_operation_count()
    comm.reset_log()
    empty = comm.has_comm_data()
    comm.configure(enabled=False)
    return rows[0]["nbytes"], rows[0]["count"], seen, empty


def test_collectives_are_logged_without_an_engine():
    for answer in run_ranks(log_collectives, 2):
        assert answer == (16, 3, (["all_reduce"], 3), False)


def hooks_off_and_on():
    engine, optimizer, *_ = deepspeed.initialize(
        model=nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)),
        config={
            **CONFIG,
            "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        },
    )
    batch = torch.ones(1, 4)
    expected = engine(batch).item()
    offload = optimizer.parameter_offload
    with deepspeed.zero.GatheredParameters(engine.parameters()):
        for hook in offload.forward_hooks:
            hook.remove()
        offload.forward_hooks = []
        assert engine.module(batch).item() == expected
        offload._register_deepspeed_module(offload.module)
    engine.backward(engine(batch).sum())
    engine.step()
    return engine(batch).item() != expected, len(offload.forward_hooks) > 0


def test_hooks_of_stage_3_can_be_removed_and_put_back():
    assert run_ranks(hooks_off_and_on, 2) == [(True, True)] * 2


def test_an_engine_that_only_evaluates_has_an_offload_object_at_stage_3_only():
    evaluates = {"train_micro_batch_size_per_gpu": 1}
    _, none, *_ = deepspeed.initialize(model=nn.Linear(1, 1), config=evaluates)
    assert none is None
    engine, found, *_ = deepspeed.initialize(
        model=nn.Linear(1, 1), config={**evaluates, "zero_optimization": {"stage": 3}}
    )
    assert found.module is engine.module
    assert found.param_coordinator.is_invalid_trace()


def test_parameter_offload_is_absent_below_stage_3():
    _, optimizer, *_ = deepspeed.initialize(model=nn.Linear(1, 1), config=CONFIG)
    assert not hasattr(optimizer, "parameter_offload")


def test_answers_about_sections():
    engine, *_ = deepspeed.initialize(
        model=nn.Linear(1, 1),
        config={**copy.deepcopy(CONFIG), "flops_profiler": {"enabled": True, "top_modules": 3}},
    )
    assert engine.flops_profiler_top_modules() == 3
    assert (engine.flops_profiler_enabled(), engine.flops_profiler_module_depth()) == (True, -1)
    assert engine.zero_model_persistence_threshold() > 0
    assert engine.random_ltd_enabled() is False
    assert not dist.is_initialized() or engine.aio_config() == {}


def test_states_move_only_where_zero_holds_them():
    engine, *_ = deepspeed.initialize(model=nn.Linear(1, 1), config=CONFIG)
    with pytest.raises(ConfigError, match="ZeRO stage"):
        engine.offload_states()
    engine, *_ = deepspeed.initialize(
        model=nn.Linear(1, 1), config={**CONFIG, "zero_optimization": {"stage": 2}}
    )
    engine.offload_states()
    engine.reload_states()
