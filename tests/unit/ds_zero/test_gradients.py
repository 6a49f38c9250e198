"""Where gradients lie in the flat memory of their unit."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ds_zero.gradients import Place
from ds_zero.plan import share
from ds_zero.units import Fact


@pytest.mark.parametrize("rows", [1, 2, 3, 8])
@pytest.mark.parametrize("numel", [1, 2, 7, 16, 17])
def test_padding_of_a_share_is_zero_whatever_the_memory_held(numel, rows):
    width = share(numel, rows)
    unit = SimpleNamespace(facts=(Fact("weight", (), torch.Size([numel]), 0),))
    flat = torch.full((rows, width + 3), torch.nan)
    Place(unit, 0, 3, rows=rows).copy(flat.view(-1), torch.arange(1.0, numel + 1))
    written = flat[:, 3:].reshape(-1)
    assert written.tolist() == [*range(1, numel + 1), *[0] * (rows * width - numel)]
    assert flat[:, :3].isnan().all()
