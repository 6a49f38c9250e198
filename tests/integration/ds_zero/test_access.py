"""Whole and local values behind sharded parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ds_zero import safe
from ds_zero.sections import ZeroSection
from support.ranks import run_ranks
from support.zero_models import Reference, batch, engine_of

STAGES = [1, 2, 3]


def values(stage: int) -> dict[str, object]:
    torch.manual_seed(0)
    section = ZeroSection(stage=stage, stage3_param_persistence_threshold=0)
    engine = engine_of(section, Reference())
    param = engine.module.l2.weight
    before = safe.safe_get_full_grad(param)
    engine.backward(engine(*batch(0, 0)))
    grad = safe.safe_get_full_grad(param)
    engine.step()
    moment = safe.safe_get_full_optimizer_state(param, "exp_avg")
    safe.safe_set_full_fp32_param(param, torch.full((8, 24), 2.0))
    safe.safe_set_full_optimizer_state(param, torch.full((8, 24), 3.0), "exp_avg")
    local = safe.safe_get_local_fp32_param(param)
    with engine.strategy.gather([param]):
        seen = param.detach().clone()
    return {
        "before": before,
        "grad": grad,
        "moment": moment,
        "local": local,
        "seen": seen,
        "set": safe.safe_get_full_optimizer_state(param, "exp_avg"),
        "frozen": safe.safe_get_full_fp32_param(engine.module.frozen.weight),
    }


@pytest.mark.parametrize("stage", STAGES)
def test_values_equal_those_of_plain_torch(stage):
    torch.manual_seed(0)
    model = Reference()
    model(*batch(0, 0)).backward()
    grad = model.l2.weight.grad
    norm = nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
    for found in run_ranks(values, 2, stage):
        assert found["before"] is None
        torch.testing.assert_close(found["grad"], grad * max(1.0, float(norm)))
        torch.testing.assert_close(found["moment"], 0.1 * grad)
        assert torch.equal(found["seen"], torch.full((8, 24), 2.0))
        assert torch.equal(found["set"], torch.full((8, 24), 3.0))
        assert found["frozen"].shape == (8, 8)
        assert found["local"] is None or set(found["local"].tolist()) == {2.0}
