"""Torch's complaint about formats gains the name of what does not fit."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ds_core.precision.mismatch import explain_formats


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2).bfloat16()
        self.register_buffer("shift", torch.ones(2))

    def forward(self, x):
        return self.layer(x + self.shift)


def words_of(module, *args, **kwargs):
    with pytest.raises(RuntimeError) as caught:
        module(*args, **kwargs)
    explain_formats(caught.value, module, args, kwargs)
    return str(caught.value)


def test_an_input_within_a_structure_is_named():
    error = RuntimeError("mat1 and mat2 must have the same dtype")
    batch = {
        "images": [torch.ones(1, dtype=torch.bfloat16), torch.ones(1)],
        "ids": torch.ones(1).int(),
    }
    explain_formats(error, Shifted(), (), {"batch": batch})
    assert "batch['images'][1] is torch.float32; convert" in str(error)


def test_a_buffer_is_named_where_all_inputs_fit():
    text = words_of(Shifted(), torch.ones(1, 2).bfloat16())
    assert "buffer shift is torch.float32; convert it where it is used" in text


def test_errors_about_something_else_stay_as_they_are():
    x = torch.ones(1, 3).bfloat16()
    assert "weights of the model" not in words_of(nn.Linear(2, 2).bfloat16(), x)


def test_many_inputs_are_not_all_listed():
    error = RuntimeError("expected scalar type BFloat16 but found Float")
    explain_formats(error, Shifted(), tuple(torch.ones(5, 1)), {})
    assert "args[2] is torch.float32 and 2 more" in str(error)
