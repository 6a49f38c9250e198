"""Activation checkpointing under the import paths that programs know."""

from __future__ import annotations

import importlib

import pytest
import torch

import deepspeed
from deepspeed.adapters import activation_checkpointing as adapter
from ds_core.errors import ConfigError


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    monkeypatch.setattr(adapter, "_default", adapter._Default())
    adapter._CUDA_RNG_STATE_TRACKER.reset()


def test_both_paths_are_one_module():
    path = "deepspeed.runtime.activation_checkpointing.checkpointing"
    assert importlib.import_module(path) is deepspeed.checkpointing
    assert deepspeed.checkpointing.checkpoint is adapter.checkpoint
    assert deepspeed.checkpointing._MODEL_PARALLEL_RNG_TRACKER_NAME == "model-parallel-rng"
    tracker = deepspeed.checkpointing.get_cuda_rng_tracker()
    assert tracker is deepspeed.checkpointing._CUDA_RNG_STATE_TRACKER


@pytest.mark.parametrize("name", ["checkpoint", "non_reentrant_checkpoint"])
@pytest.mark.parametrize("configured", [False, True])
def test_a_function_is_run_twice_and_trains(name, configured):
    if configured:
        config = {"train_batch_size": 1, "activation_checkpointing": {"cpu_checkpointing": True}}
        deepspeed.checkpointing.configure(None, deepspeed_config=config)
    assert deepspeed.checkpointing.is_configured() is configured
    calls, x = [], torch.ones(3, requires_grad=True)

    def function(a, factor):
        calls.append(1)
        return (a.square() * factor,)

    getattr(deepspeed.checkpointing, name)(function, x, 2.0).sum().backward()
    assert len(calls) == 2
    assert x.grad.tolist() == [4.0] * 3


def test_the_old_autograd_function_fills_its_list():
    outputs, x = [], torch.ones(3, requires_grad=True)
    deepspeed.checkpointing.CheckpointFunction.apply(lambda a: (a * 2, None), outputs, x)
    outputs[0].sum().backward()
    assert outputs[1] is None
    assert x.grad.tolist() == [2.0] * 3


def test_arguments_win_over_the_config():
    section = {"number_checkpoints": 3, "contiguous_memory_optimization": True, "profile": True}
    config = {"train_batch_size": 1, "activation_checkpointing": section}
    deepspeed.checkpointing.configure(None, config, num_checkpoints=5, profile=False)
    options = adapter._default.options
    assert (options.number_checkpoints, options.profile) == (5, False)
    assert options.contiguous_memory_optimization


def test_partitioning_without_an_mpu_is_refused():
    with pytest.raises(ConfigError, match="needs an mpu"):
        deepspeed.checkpointing.configure(None, partition_activations=True)
    assert not deepspeed.checkpointing.is_configured()


@pytest.mark.parametrize("kind", ["tensor_model", "model", "slice"])
def test_the_model_parallel_state_depends_on_the_rank(kind):
    drawn = []
    for rank in (0, 1):
        mpu = type("Mpu", (), {f"get_{kind}_parallel_rank": staticmethod(lambda rank=rank: rank)})
        deepspeed.checkpointing.configure(mpu())
        deepspeed.checkpointing.model_parallel_cuda_manual_seed(7)
        with deepspeed.checkpointing.get_cuda_rng_tracker().fork():
            drawn.append(torch.rand(1).item())
        deepspeed.checkpointing.model_parallel_reconfigure_tp_seed(7)
        with deepspeed.checkpointing.get_cuda_rng_tracker().fork():
            assert torch.rand(1).item() == drawn[-1]
    assert drawn[0] != drawn[1]


def test_small_helpers_keep_their_behaviour():
    module, one = deepspeed.checkpointing, torch.ones(1, requires_grad=True)
    assert module.extract_tensors((1, one, None)) == ((one,), (1, None), (False, True, False))
    assert module.merge_tensors([one], [1, None], [False, True, False]) == (1, one, None)
    detached, rest = module.detach_variable((one * 2, 5))
    assert (detached.grad_fn, detached.requires_grad, rest) == (None, True, 5)
    assert module.is_activation_to_checkpoint(one)
    assert not module.is_activation_to_checkpoint(torch.ones(1, dtype=torch.int))


def test_what_is_not_offered_says_what_to_use():
    with pytest.raises(NotImplementedError, match="get_partition_size: see ds_core"):
        deepspeed.checkpointing.get_partition_size(torch.ones(1))
