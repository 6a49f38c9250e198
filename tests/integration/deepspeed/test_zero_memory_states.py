"""Model states take what the arithmetic says: 2 + 4 + 12 bytes a parameter, divided by stage."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from support.ranks import run_ranks

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "zero_memory.py"


def benchmark():
    spec = importlib.util.spec_from_file_location("zero_memory", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_tensors_alive_are_the_states_and_the_stated_buffers(stage, ranks):
    for found in run_ranks(benchmark().measure_states, ranks, stage, "tiny"):
        assert found["alive"] > 0.99 * found["arithmetic"]
        assert found["alive"] < 1.1 * found["arithmetic"] + found["buffers"]


def test_a_model_built_in_shares_holds_its_share():
    for found in run_ranks(benchmark().measure_init, 4, "tiny"):
        assert found["held"] < 1.01 * found["share"]
