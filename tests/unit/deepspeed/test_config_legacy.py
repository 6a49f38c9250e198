"""The configuration under its old names."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest
import torch

from deepspeed.config import ConfigError
from deepspeed.config.getters import DeepSpeedConfigWriter
from deepspeed.config.legacy import DeepSpeedConfig
from deepspeed.legacy.config import NAMES

BERT = {
    "train_batch_size": 4096,
    "train_micro_batch_size_per_gpu": 64,
    "steps_per_print": 1000,
    "optimizer": {
        "type": "Adam",
        "params": {
            "lr": 2e-4,
            "max_grad_norm": 1.0,
            "weight_decay": 0.01,
            "bias_correction": False,
        },
    },
    "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16},
}

EXPECTED = {
    "train_batch_size": 4096,
    "train_micro_batch_size_per_gpu": 64,
    "gradient_accumulation_steps": 64,
    "world_size": 1,
    "steps_per_print": 1000,
    "fp16_enabled": True,
    "bfloat16_enabled": False,
    "gradient_clipping": 1.0,
    "optimizer_name": "adam",
    "optimizer_params": {"lr": 2e-4, "weight_decay": 0.01, "bias_correction": False},
    "scheduler_name": None,
    "scheduler_params": None,
    "zero_enabled": False,
    "zero_optimization_stage": 0,
    "communication_data_type": None,
    "seq_parallel_communication_data_type": torch.float32,
    "prescale_gradients": False,
    "sparse_gradients_enabled": False,
    "torch_autocast_enabled": False,
    "torch_autocast_dtype": None,
    "checkpoint_tag_validation_enabled": True,
    "checkpoint_tag_validation_fail": False,
    "load_universal_checkpoint": False,
    "pld_enabled": False,
    "wall_clock_breakdown": False,
    "amp_enabled": False,
    "dataloader_drop_last": False,
}


@pytest.fixture(autouse=True)
def _one_process(monkeypatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)


@pytest.mark.parametrize("name", EXPECTED)
def test_attribute_of_the_bert_configuration(name) -> None:
    assert getattr(DeepSpeedConfig(BERT), name) == EXPECTED[name]


def test_loss_scale_settings_are_there() -> None:
    assert DeepSpeedConfig(BERT).float16_config.initial_scale_power == 16


def test_world_size_comes_from_mpu() -> None:
    mpu = SimpleNamespace(get_data_parallel_world_size=lambda: 4)
    assert DeepSpeedConfig(BERT, mpu=mpu).gradient_accumulation_steps == 16
    with pytest.raises(ConfigError, match=r"from mpu\.get_data_parallel_world_size"):
        DeepSpeedConfig({"train_batch_size": 9}, mpu=mpu)


def test_world_size_comes_from_a_mesh() -> None:
    mesh = SimpleNamespace(mesh_dim_names=("model", "data_parallel"), size=lambda axis: 2 + axis)
    assert DeepSpeedConfig({"train_batch_size": 6}, mesh_device=mesh).world_size == 3


def test_unknown_attribute_says_so() -> None:
    with pytest.raises(AttributeError, match="DeepSpeedConfig has no 'colour'"):
        _ = DeepSpeedConfig(BERT).colour


def test_print_goes_to_the_log(caplog) -> None:
    caplog.set_level("INFO")
    config = DeepSpeedConfig(BERT)
    config.print("settings")
    config.print_user_config()
    assert "train_batch_size = 4096" in caplog.text
    assert '"bias_correction": false' in caplog.text


def entries() -> list[tuple[str, str]]:
    return [
        (f"{module}.{name}", target)
        for module, names in NAMES.items()
        for name, target in names.items()
        if not target.startswith("!")
    ]


@pytest.mark.parametrize(("name", "target"), entries(), ids=[name for name, _ in entries()])
def test_old_name_leads_somewhere(name, target) -> None:
    module, _, attribute = target.partition(":")
    assert callable(getattr(importlib.import_module(module), attribute)), name


@pytest.mark.parametrize(
    ("getter", "expected"),
    [
        ("get_train_batch_size", 4096),
        ("get_optimizer_name", "Adam"),
        ("get_optimizer_gradient_clipping", 1.0),
        ("get_scheduler_name", None),
        ("get_zero_force_ds_cpu_optimizer", True),
        ("get_gradient_accumulation_steps", None),
        ("get_communication_data_type", None),
    ],
)
def test_getter_reads_the_raw_json(getter, expected) -> None:
    module = importlib.import_module("deepspeed.config.getters")
    assert getattr(module, getter)(BERT) == expected


def test_writer_round_trip(tmp_path) -> None:
    writer = DeepSpeedConfigWriter()
    writer.add_config("train_batch_size", 3)
    writer.write_config(tmp_path / "ds.json")
    other = DeepSpeedConfigWriter()
    other.load_config(tmp_path / "ds.json")
    assert other.data == {"train_batch_size": 3}


def test_section_that_nothing_serves_is_none(monkeypatch) -> None:
    config = DeepSpeedConfig(BERT)
    monkeypatch.setattr("deepspeed.config.legacy._ON_DEMAND", {"aio_config": "no_such_section"})
    assert config.aio_config is None
