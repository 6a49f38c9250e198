"""Each key of `zero_optimization` acts or is refused by name."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest

import ds_zero
from ds_zero.sections import (
    LeafModuleSection,
    OffloadOptimizerSection,
    OffloadParamSection,
    ZeroSection,
)

KINDS = (ZeroSection, OffloadOptimizerSection, OffloadParamSection, LeafModuleSection)
READ_BY_NAME = {"stage3_gather_16bit_weights_on_model_save", "override_module_apply"}
"""Keys that the meta-package or `Init` looks up by name."""


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
    for kind in KINDS:
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


def attributes_read() -> set[str]:
    """Every attribute name that the package's code reads."""
    files = Path(ds_zero.__file__).parent.glob("*.py")
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text())))
    return {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)}


def test_every_key_is_acted_on_or_refused_or_deprecated():
    facts = {entry.name: entry.metadata for kind in KINDS for entry in dataclasses.fields(kind)}
    idle = {name for name, fact in facts.items() if not {"only", "deprecated"} & fact.keys()}
    assert idle - attributes_read() == READ_BY_NAME
    assert not any("no effect" in facts[name]["doc"] for name in idle)
