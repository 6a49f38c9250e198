"""Replicas in corner cases."""

from __future__ import annotations

import torch

from ds_core.contracts import Divisor
from ds_core.groups import make_groups
from ds_core.optimizers import parameter_groups
from ds_core.precision import DynamicLossScaler, PrecisionSettings
from ds_core.replicated import Replicated
from support.training import adamw


def test_a_module_without_parameters_takes_its_steps():
    strategy = Replicated(
        torch.nn.ReLU(),
        parameter_groups([]),
        adamw,
        groups=make_groups(),
        precision=PrecisionSettings(make_scaler=DynamicLossScaler),
    )
    report = strategy.step(divisor=Divisor(1, 1))
    assert (report.skipped, report.grad_norm) == (False, 0.0)
