"""What ds-aio does together with packages it does not need."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.torch
import torch

import ds_aio
from ds_aio import Options
from ds_aio.tune import Point
from ds_aio.tune.plot import draw


def state() -> dict[str, torch.Tensor]:
    return {
        "weight": torch.randn(1000, 700),
        "bias": torch.randn(700).bfloat16(),
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "odd": torch.arange(101, dtype=torch.uint8),
        "flags": torch.tensor([True, False, True]),
        "strided": torch.randn(900, 800).t()[::2],
    }


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]) for name in a
    )


def test_safetensors_reads_what_we_write(tmp_path: Path) -> None:
    tensors = state()
    ds_aio.save(tmp_path / "ours", tensors)
    assert same(safetensors.torch.load_file(tmp_path / "ours"), tensors)
    ds_aio.save(tmp_path / "nothing", {})
    assert safetensors.torch.load_file(tmp_path / "nothing") == {}


def test_we_read_what_safetensors_writes(tmp_path: Path) -> None:
    plain = {name: tensor.contiguous() for name, tensor in state().items()}
    safetensors.torch.save_file(plain, tmp_path / "theirs", metadata={"a": "b"})
    assert same(ds_aio.load(tmp_path / "theirs"), plain)
    assert ds_aio.read_metadata(tmp_path / "theirs") == {"a": "b"}


@pytest.mark.parametrize("kinds", [["read"], ["read", "write"]])
def test_the_heat_map_is_a_picture(tmp_path: Path, kinds: list[str]) -> None:
    points = [
        Point(Options(block_size=block, queue_depth=depth), read=1e9, write=2e9)
        for block in (4096, 1 << 20)
        for depth in (1, 8)
    ]
    draw(points, kinds, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
