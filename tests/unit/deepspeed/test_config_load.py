"""What a configuration is read as."""

from __future__ import annotations

import contextlib
import logging
import math
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deepspeed.config import ConfigError, ConfigFaults, WorldSize, load_config
from ds_core.sections import FP16Section, OptimizerSection

BATCH = {"train_batch_size": 8}
BATCH_KEYS = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)


class Stage(IntEnum):
    whole = 0
    moments = 1
    sharded = 2


@dataclass(frozen=True)
class Offload:
    device: Literal["none", "cpu", "nvme"] = "none"
    nvme_path: Path | None = None
    buffer_size: int = field(default=100, metadata={"gt": 0, "size": True, "auto": True})


@dataclass(frozen=True)
class Metric:
    difficulty: int
    steps: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Zero:
    stage: Stage = Stage.whole
    bucket: int = field(default=500, metadata={"ge": 1, "size": True, "auto": True})
    count: int = field(default=4, metadata={"ge": 1, "aliases": ("old_count",)})
    gather: bool = field(default=False, metadata={"deprecated": "say collect instead"})
    offload: Offload | None = None
    metrics: dict[str, Metric] = field(default_factory=dict)
    metric_list: list[Metric] = field(default_factory=list)
    ratio: float = field(default=1.0, metadata={"ge": 0, "le": 1})

    part: Offload = field(default_factory=Offload)

    def __post_init__(self) -> None:
        if self.ratio == 0.5:
            raise ValueError("a half is not allowed")
        if self.ratio == 0.25:
            raise ValueError("zero_optimization.ratio: no", "zero_optimization.count: no")


SECTIONS = {"zero_optimization": Zero, "fp16": FP16Section, "optimizer": OptimizerSection}


def read(zero: Any = None, **top: Any):
    config = {**BATCH, **top} | ({} if zero is None else {"zero_optimization": zero})
    return load_config(config, world_size=1, sections=SECTIONS)


def faults(zero: Any = None, **top: Any) -> list[str]:
    with pytest.raises(ConfigFaults) as caught:
        read(zero, **top)
    return [str(fault) for fault in caught.value.faults]


@pytest.mark.parametrize(
    ("zero", "name", "value"),
    [
        ({"stage": 2}, "stage", Stage.sharded),
        ({"stage": 2.0}, "stage", Stage.sharded),
        (True, "stage", Stage.moments),
        ({"bucket": 5e8}, "bucket", 500_000_000),
        ({"bucket": "auto"}, "bucket", 500),
        ({"count": 3.0}, "count", 3),
        ({"old_count": 3}, "count", 3),
        ({"offload": None}, "offload", None),
        ({"offload": False}, "offload", None),
        (
            {"offload": {"device": "NVMe", "nvme_path": "/x"}},
            "offload",
            Offload("nvme", Path("/x")),
        ),
        ({"offload": {"nvme_path": Path("/x")}}, "offload", Offload("none", Path("/x"))),
        ({"metrics": {"a": {"difficulty": 2.0}}}, "metrics", {"a": Metric(2)}),
        (
            {"metric_list": [{"difficulty": 1, "steps": [2.0, 3]}]},
            "metric_list",
            [Metric(1, [2, 3])],
        ),
        ({"ratio": 1}, "ratio", 1.0),
        ({"part": None}, "part", Offload()),
        ({"part": False}, "part", Offload()),
        ({"count": np.int64(7)}, "count", 7),
    ],
)
def test_section_value_is_read_as(zero, name, value) -> None:
    assert getattr(read(zero).section("zero_optimization"), name) == value


@pytest.mark.parametrize(
    ("zero", "message"),
    [
        ({"stgae": 1}, "zero_optimization.stgae: unknown key, did you mean 'stage'?"),
        ({"stage": 7}, "zero_optimization.stage: got 7, expected one of 0, 1, 2"),
        ({"stage": True}, "zero_optimization.stage: got true, expected one of 0, 1, 2"),
        ({"count": 2.5}, "zero_optimization.count: got 2.5, expected a whole number >= 1"),
        (
            {"count": 1, "old_count": 2},
            "zero_optimization.old_count: 2 contradicts zero_optimization.count, the same "
            "setting, which is 1; keep one",
        ),
        (
            {"offload": {"device": "nvem"}},
            "zero_optimization.offload.device: got \"nvem\", expected one of 'none', 'cpu', "
            "'nvme', did you mean 'nvme'?",
        ),
        (
            {"metrics": {"a": {"dificulty": 2, "difficulty": 1}}},
            "zero_optimization.metrics.a.dificulty: unknown key, did you mean 'difficulty'?",
        ),
        (
            {"metric_list": [{"difficulty": 1}, {}]},
            "zero_optimization.metric_list[1].difficulty: missing, expected a whole number",
        ),
        ({"metrics": []}, "zero_optimization.metrics: got [], expected an object of objects"),
        ({"ratio": 1.5}, "zero_optimization.ratio: got 1.5, expected a number >= 0 and <= 1"),
        ({"ratio": 0.5}, "zero_optimization: a half is not allowed"),
        (
            {"gather": "auto"},
            '"auto" is left in zero_optimization.gather: only the program that '
            'fills in "auto" knows these; give values',
        ),
    ],
)
def test_faulty_section_value_is_told(zero, message) -> None:
    assert faults(zero) == [message]


def test_section_may_report_several_faults_of_its_own() -> None:
    assert faults({"ratio": 0.25}) == ["zero_optimization.ratio: no", "zero_optimization.count: no"]


def test_size_hint_with_a_fraction_rounds_down_and_says_so(caplog) -> None:
    config = read({"bucket": 15099494.4, "offload": {"buffer_size": 0.9e3}})
    assert config.section("zero_optimization").bucket == 15099494
    assert config.notices == ("zero_optimization.bucket: 15099494.4 rounded down to 15099494",)
    assert "rounded down" in caplog.text


def test_deprecated_key_is_told() -> None:
    notice = "zero_optimization.gather: deprecated, say collect instead"
    assert read({"gather": True}).notices == (notice,)


def test_far_unknown_top_level_name_is_a_notice(caplog) -> None:
    with caplog.at_level(logging.WARNING):
        config = read(my_experiment={"auto": 1})
    assert config.notices == ("my_experiment: unknown key, ignored",)
    assert config.raw["my_experiment"] == {"auto": 1}


def test_dotted_key_at_top_level_is_a_notice() -> None:
    config = read(**{"zero_optimization.bucket": 7})
    assert config.section("zero_optimization").bucket == 500
    assert config.notices == (
        "zero_optimization.bucket: ignored, a dotted key at the top level sets nothing",
    )


@pytest.mark.parametrize("value", [math.inf, None])
def test_steps_per_print_may_be_never(value) -> None:
    assert read(steps_per_print=value).general.steps_per_print is None


@pytest.mark.parametrize("value", ["bf16", "bfloat16", torch.bfloat16])
def test_dtype_has_several_spellings(value) -> None:
    assert read(communication_data_type=value).general.communication_data_type == "bf16"


def test_max_grad_norm_of_the_optimizer_is_gradient_clipping() -> None:
    optimizer = {"type": "Adam", "params": {"lr": 0.1, "max_grad_norm": 2.0}}
    config = read(optimizer=optimizer)
    assert config.general.gradient_clipping == 2.0
    assert config.section("optimizer").params == {"lr": 0.1}
    assert config.raw["optimizer"] == optimizer


def test_raw_is_a_copy_of_what_was_given() -> None:
    given = {**BATCH, "zero_optimization": {"stage": 2, "offload": {"device": "none"}}}
    config = load_config(given, world_size=1, sections=SECTIONS)
    assert config.raw == given
    given["zero_optimization"]["offload"]["device"] = "cpu"
    assert config.raw["zero_optimization"]["offload"]["device"] == "none"


def test_section_that_was_not_given_has_its_defaults() -> None:
    config = read()
    assert config.sections == {}
    assert config.section("fp16") == FP16Section()
    with pytest.raises(ConfigError, match="optimizer: not given, and it has no defaults"):
        config.section("optimizer")


@pytest.mark.parametrize(
    ("name", "value", "package"),
    [
        ("zero_optimization", {"stage": 1}, "ds-zero"),
        ("flops_profiler", {"enabled": True}, "ds-profiler"),
        ("aio", {"block_size": 1}, "ds-aio"),
        ("wall_clock_breakdown", True, "ds-profiler"),
        ("data_efficiency", {"enabled": True, "data_routing": {"enabled": True}}, "ds-data"),
    ],
)
def test_section_of_a_missing_package_says_what_to_install(name, value, package) -> None:
    with pytest.raises(ConfigError, match=f"{name}: nothing installed .*; pip install {package}"):
        load_config({**BATCH, name: value}, sections={})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("zero_optimization", {"stage": 0}),
        ("zero_optimization", False),
        ("flops_profiler", {"enabled": False, "profile_step": 1}),
        ("elasticity", {"enabled": False}),
        ("tensor_parallel", {"autotp_size": "auto"}),
        ("compile", {"deepcompile": False}),
        ("amp", None),
        ("wall_clock_breakdown", False),
        ("compression_training", {"layer_reduction": {"enabled": False}}),
    ],
)
def test_disabled_section_needs_nobody(name, value) -> None:
    assert load_config({**BATCH, name: value}, sections={}).sections == {}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ((8, None, None), (8, 4, 1)),
        ((None, 4, None), (8, 4, 1)),
        ((8, 2, None), (8, 2, 2)),
        ((8, None, 2), (8, 2, 2)),
        ((None, 2, 2), (8, 2, 2)),
        ((8, 2, 2), (8, 2, 2)),
        ((8.0, "auto", "auto"), (8, 4, 1)),
    ],
)
def test_missing_batch_sizes_are_derived(keys, expected) -> None:
    config = {name: key for name, key in zip(BATCH_KEYS, keys, strict=True) if key is not None}
    batch = load_config(config, world_size=2, sections={}).batch
    assert (batch.train, batch.micro, batch.accumulation) == expected


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64), st.sampled_from(BATCH_KEYS))
def test_each_batch_size_follows_from_the_others(micro, accumulation, ranks, left_out) -> None:
    whole = {
        "train_batch_size": micro * accumulation * ranks,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
    }
    part = {key: value for key, value in whole.items() if key != left_out}
    read_whole = load_config(whole, world_size=ranks, sections={}).batch
    assert load_config(part, world_size=ranks, sections={}).batch == read_whole


@pytest.mark.parametrize(
    ("variables", "source"),
    [
        ({"WORLD_SIZE": "2"}, "the environment variable WORLD_SIZE"),
        (
            {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"},
            "the environment, RANK and WORLD_SIZE",
        ),
    ],
)
def test_world_size_comes_from_the_environment(monkeypatch, variables, source) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    batch = load_config({"train_batch_size": 8}, sections={}).batch
    assert (batch.world_size, batch.source) == (2, source)


def test_only_the_first_rank_tells_notices(monkeypatch, caplog) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    for rank, records in (("1", 0), ("0", 1)):
        monkeypatch.setenv("RANK", rank)
        read(my_own=1)
        assert len(caplog.records) == records


@pytest.mark.parametrize("name", ["checkpoint_dir", "tensor_parallel_size", "seed", "max_steps"])
def test_name_of_the_users_own_passes(name) -> None:
    assert read(**{name: 1}).notices == (f"{name}: unknown key, ignored",)


def test_message_says_where_the_world_size_is_from(monkeypatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    sizes = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 3}
    with pytest.raises(ConfigError, match="no process group and no WORLD_SIZE"):
        load_config(sizes, sections={})
    with pytest.raises(ConfigError, match="from the grid"):
        load_config(sizes, world_size=WorldSize(2, "the grid"), sections={})


def test_partial_reading_lets_auto_and_missing_sizes_pass() -> None:
    config = load_config(
        {
            "train_batch_size": "auto",
            "gradient_clipping": "auto",
            "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
            "zero_optimization": {"bucket": "auto", "stage": 2},
        },
        world_size=2,
        sections=SECTIONS,
        partial=True,
    )
    assert config.batch.micro == 1
    assert config.section("zero_optimization").stage == Stage.sharded
    assert config.general.gradient_clipping == 1.0


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS | st.just("auto"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["enabled", "type", "params", "lr", "offload"]), inner)
    ),
    max_leaves=8,
)
TOP = st.sampled_from(
    [*BATCH_KEYS, *SECTIONS, "gradient_clipping", "steps_per_print", "bf16", "bfloat16", "amp"]
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(TOP, VALUES, max_size=6), st.booleans())
def test_any_json_is_read_or_refused_with_a_config_error(config, partial) -> None:
    with contextlib.suppress(ConfigError):
        load_config(config, world_size=2, sections=SECTIONS, partial=partial)
