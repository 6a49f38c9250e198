"""The memory that `ds_config check` foretells."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pytest

from deepspeed.config import load_config
from deepspeed.config.memory import memory_lines, state_memory
from ds_core import sections as core


@dataclass(frozen=True)
class Offload:
    device: Literal["none", "cpu", "nvme"] = "none"


@dataclass(frozen=True)
class Zero:
    stage: int = 0
    offload_optimizer: Offload = field(default_factory=Offload)
    offload_param: Offload = field(default_factory=Offload)
    stage3_max_live_parameters: int = 10**9


SECTIONS = {
    "zero_optimization": Zero,
    "fp16": core.FP16Section,
    "bf16": core.BF16Section,
    "data_types": core.DataTypesSection,
    "optimizer": core.OptimizerSection,
}


def bytes_per_param(**config) -> dict[str, float]:
    read = load_config({"train_batch_size": 4, **config}, world_size=4, sections=SECTIONS)
    total: dict[str, float] = {}
    for item in state_memory(read, 1000):
        total[item.place] = total.get(item.place, 0) + item.nbytes / 1000
    return total


BF16 = {"bf16": {"enabled": True}}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {"device": 4 + 4 + 8}),
        (BF16, {"device": 2 + 4 + 4 + 8}),
        (BF16 | {"data_types": {"grad_accum_dtype": "bf16"}}, {"device": 2 + 2 + 4 + 8}),
        (BF16 | {"optimizer": {"type": "Lion"}}, {"device": 2 + 4 + 4 + 4}),
        (BF16 | {"zero_optimization": {"stage": 1}}, {"device": 2 + 4 + 12 / 4}),
        (BF16 | {"zero_optimization": {"stage": 2}}, {"device": 2 + 16 / 4}),
        (BF16 | {"zero_optimization": {"stage": 3}}, {"device": 18 / 4 + 2}),
        (
            BF16 | {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
            {"device": 2, "cpu": 16 / 4},
        ),
        (
            BF16 | {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme"}}},
            {"device": 6 / 4 + 2, "nvme": 12 / 4},
        ),
    ],
)
def test_bytes_per_parameter(config, expected) -> None:
    assert bytes_per_param(**config) == expected


def test_lines_show_parts_and_sums() -> None:
    config = load_config(
        {"train_batch_size": 4, **BF16, "zero_optimization": {"stage": 1}},
        world_size=4,
        sections=SECTIONS,
    )
    lines = memory_lines(config, 2**30)
    assert "  optimizer state               2.00 GiB  device  1/4 of the whole" in lines
    assert lines[-1] == "  all                           9.00 GiB  device"
