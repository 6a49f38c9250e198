"""Each key of `zero_optimization` acts or is refused by name."""

from __future__ import annotations

import dataclasses

import pytest

from ds_zero.sections import (
    OffloadOptimizerSection,
    OffloadParamSection,
    ZeroSection,
)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("zero_hpz_partition_size", 8),
        ("zero_quantized_weights", True),
        ("zero_quantized_gradients", True),
        ("mics_shard_size", 4),
        ("zenflow", {}),
        ("legacy_stage1", True),
        ("pipeline_loading_checkpoint", True),
        ("use_multi_rank_bucket_allreduce", False),
    ],
)
def test_what_is_not_offered_is_refused_by_name(key, value):
    with pytest.raises(ValueError, match=f"zero_optimization.{key}"):
        ZeroSection(**{key: value})


def test_every_field_says_what_it_is():
    for kind in (ZeroSection, OffloadOptimizerSection, OffloadParamSection):
        for entry in dataclasses.fields(kind):
            assert entry.metadata["doc"], entry.name


def test_old_switches_set_what_replaced_them():
    section = ZeroSection(stage=3, cpu_offload=True, cpu_offload_param=True)
    assert section.offload_optimizer.device == "cpu"
    assert section.offload_param.device == "cpu"


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_parameters_are_offloaded_at_stage_3_only(stage):
    with pytest.raises(ValueError, match="stage 3"):
        ZeroSection(stage=stage, offload_param=OffloadParamSection(device="cpu"))


def test_nvme_needs_a_folder():
    with pytest.raises(ValueError, match="nvme_path"):
        OffloadOptimizerSection(device="nvme")
