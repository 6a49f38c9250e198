"""Sharded training on accelerators: collectives on their own streams, pinned copies, overlap."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ds_core.engine import Engine
from ds_core.groups import make_groups
from ds_core.precision import PrecisionSettings
from ds_zero import Setup, ZeroSection, make
from ds_zero.sections import OffloadOptimizerSection, OffloadParamSection

pytestmark = pytest.mark.gpu

HOST = {
    "offload_optimizer": OffloadOptimizerSection(device="cpu"),
    "offload_param": OffloadParamSection(device="cpu"),
}
SECTIONS = {
    "stage1": ZeroSection(stage=1),
    "stage2": ZeroSection(stage=2, reduce_bucket_size=10_000),
    "stage3": ZeroSection(stage=3, stage3_param_persistence_threshold=0),
    "stage3-frugal": ZeroSection(
        stage=3, stage3_param_persistence_threshold=0, stage3_max_reuse_distance=0
    ),
    "stage1-cpu": ZeroSection(stage=1, offload_optimizer=HOST["offload_optimizer"]),
    "stage3-cpu": ZeroSection(stage=3, stage3_param_persistence_threshold=0, **HOST),
}


@pytest.fixture
def device(tmp_path):
    torch.cuda.set_device(0)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield torch.device("cuda", 0)
    dist.destroy_process_group()


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.LayerNorm(64))


def batch(step: int, device: torch.device) -> torch.Tensor:
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(step)).to(device)


def plain(device: torch.device) -> list[float]:
    net = model().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for step in range(4):
        loss = net(batch(step, device)).square().mean() + net[0].weight.square().mean() * 0
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("name", list(SECTIONS))
def test_losses_equal_plain_torch(name, device):
    net = model()
    groups = make_groups()
    params = [{"params": list(net.parameters())}]
    setup = Setup(net, params, lambda p: torch.optim.AdamW(p, lr=1e-2), groups, PrecisionSettings())
    engine = Engine(net, make(SECTIONS[name], setup, device=device), groups=groups)
    losses = []
    for step in range(4):
        loss = engine(batch(step, device)).square().mean()
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    engine.destroy()
    assert losses == pytest.approx(plain(device), rel=1e-4)


def test_states_go_to_the_host_and_come_back(device):
    net = model()
    groups = make_groups()
    params = [{"params": list(net.parameters())}]
    setup = Setup(net, params, lambda p: torch.optim.AdamW(p, lr=1e-2), groups, PrecisionSettings())
    strategy = make(ZeroSection(stage=3), setup, device=device)
    engine = Engine(net, strategy, groups=groups)
    engine.backward(engine(batch(0, device)).square().mean())
    engine.step()
    before = torch.cuda.memory_allocated()
    strategy.offload_states()
    assert torch.cuda.memory_allocated() < before
    strategy.reload_states()
    engine.backward(engine(batch(1, device)).square().mean())
    assert engine.step() is not None
