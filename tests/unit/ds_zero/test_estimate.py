"""Estimates equal the documented arithmetic."""

from __future__ import annotations

import pytest
from torch import nn

from ds_zero.estimate import (
    count_parameters,
    estimate_zero2_model_states_mem_needs_all_cold,
    estimate_zero2_model_states_mem_needs_all_live,
    estimate_zero3_model_states_mem_needs_all_live,
    zero2_bytes,
    zero3_bytes,
)

MILLION = 10**6


@pytest.mark.parametrize(
    ("offload", "expected"),
    [(True, (4800 * MILLION, 200 * MILLION)), (False, (2400 * MILLION, 600 * MILLION))],
)
def test_stage_2_on_two_nodes_of_four(offload, expected):
    found = zero2_bytes(100 * MILLION, devices=4, nodes=2, offload_optimizer=offload)
    assert found == expected


@pytest.mark.parametrize(
    ("optimizer", "param", "zero_init", "expected"),
    [
        (True, True, True, (1350, 40)),
        (True, True, False, (2400, 40)),
        (True, False, True, (1200, 65)),
        (False, False, True, (240, 265)),
        (False, False, False, (2400, 265)),
    ],
)
def test_stage_3_on_two_nodes_of_four(optimizer, param, zero_init, expected):
    host, device, layer = zero3_bytes(
        100 * MILLION,
        10 * MILLION,
        devices=4,
        nodes=2,
        offload_optimizer=optimizer,
        offload_param=param,
        zero_init=zero_init,
    )
    assert (host // MILLION, device // MILLION) == expected
    assert layer == 40 * MILLION


def test_live_models_are_counted_once(capsys):
    model = nn.Sequential(nn.Linear(10, 20), nn.Linear(20, 10, bias=False))
    model.append(model[0])
    assert count_parameters(model) == (420, 220)
    estimate_zero2_model_states_mem_needs_all_live(model, 2, 1)
    estimate_zero3_model_states_mem_needs_all_live(model, 2, 1)
    assert capsys.readouterr().out.count("Setup with 1 node, 2 GPUs per node") == 2


def test_report_goes_where_it_is_sent():
    lines: list[str] = []
    estimate_zero2_model_states_mem_needs_all_cold(2_851_000_000, 8, 1, report=lines.append)
    assert "15.93GB" in lines[-1]
