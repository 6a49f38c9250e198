"""Tiles compute what the whole layer does."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ds_zero.tiling import TiledLinear, TiledLinearReturnBias


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("splits", [(1, 1), (2, 3), (7, 5)])
def test_tiles_equal_the_whole_layer(splits, bias):
    layer = nn.Linear(7, 5, bias=bias)
    tiled = TiledLinear(7, 5, bias, *splits, init_linear=layer)
    x = torch.randn(3, 7)
    torch.testing.assert_close(tiled(x), layer(x))
    split = TiledLinear(
        7,
        5,
        bias,
        *splits,
        input_is_already_split=True,
        combine_out_splits=False,
        init_linear=layer,
    )
    parts = split(torch.split(x, split.in_parts, dim=-1))
    torch.testing.assert_close(torch.cat(parts, dim=-1), layer(x))


class BiasBeside(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, self.weight), self.bias


def test_bias_is_returned_beside_the_output():
    layer = nn.Linear(6, 4)
    tiled = TiledLinearReturnBias(6, 4, True, 2, 2, linear_cls=BiasBeside, init_linear=layer)
    x = torch.randn(2, 6)
    output, bias = tiled(x)
    torch.testing.assert_close(output + bias, layer(x))


@pytest.mark.parametrize("splits", [(0, 1), (1, 9)])
def test_splits_outside_of_the_sides_are_refused(splits):
    with pytest.raises(ValueError, match="splits"):
        TiledLinear(7, 8, True, *splits)
