"""Memory a rank needs: shares, one layer, and what does not fit goes to the store."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch
from torch import nn

from ds_core.contracts import Pending
from ds_core.engine import Engine
from ds_core.groups import make_groups
from ds_core.precision import PrecisionSettings
from ds_zero import Init, Setup, ZeroSection, make
from ds_zero.sections import OffloadOptimizerSection
from support.ranks import run_ranks

LAYERS, WIDTH = 24, 1024
MODEL_MB = LAYERS * WIDTH * WIDTH * 4 / 2**20
LAYER_MB = MODEL_MB / LAYERS


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def build() -> float:
    with Init():
        nn.Linear(WIDTH, WIDTH)
    before = peak_mb()
    with Init():
        layers()
    return peak_mb() - before


@pytest.mark.slow
def test_a_model_built_in_shares_is_never_whole_on_a_rank():
    for used in run_ranks(build, 4, timeout=120):
        assert used < MODEL_MB / 4 + 4 * LAYER_MB + 10


class FileStore:
    """The smallest `TensorStore` on disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, key: str, tensor: torch.Tensor, offset: int = 0) -> Pending:
        path = self.folder / key
        path.touch()
        with open(path, "r+b") as file:
            file.seek(offset)
            file.write(tensor.detach().view(torch.uint8).numpy().data)
        return _Done()

    def read(self, key: str, out: torch.Tensor, offset: int = 0) -> Pending:
        with open(self.folder / key, "rb") as file:
            file.seek(offset)
            file.readinto(out.detach().view(torch.uint8).numpy().data)
        return _Done()

    def close(self) -> None: ...


class _Done:
    def wait(self) -> None: ...

    def done(self) -> bool:
        return True


def train(device: str, folder: str) -> tuple[list[float], float]:
    torch.manual_seed(0)
    model = layers()
    groups = make_groups()
    offload = OffloadOptimizerSection(device=device, nvme_path=Path(folder))
    section = ZeroSection(stage=1, offload_optimizer=offload, sub_group_size=2 * WIDTH * WIDTH)
    params = [{"params": list(model.parameters())}]
    setup = Setup(
        model, params, lambda p: torch.optim.AdamW(p, lr=1e-3), groups, PrecisionSettings()
    )
    strategy = make(section, setup, make_store=FileStore)
    engine = Engine(model, strategy, groups=groups)
    before, losses = peak_mb(), []
    for step in range(3):
        torch.manual_seed(step)
        loss = engine(torch.randn(2, WIDTH)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses, peak_mb() - before


@pytest.mark.slow
def test_state_beyond_memory_goes_to_the_store_and_changes_no_loss(tmp_path):
    [(plain, in_memory)] = run_ranks(train, 1, "none", str(tmp_path))
    [(swapped, outside)] = run_ranks(train, 1, "nvme", str(tmp_path))
    assert swapped == plain
    assert outside < in_memory - MODEL_MB  # two moments of the model's size stay outside
