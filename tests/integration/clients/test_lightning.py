"""Lightning and Fabric train with their DeepSpeed strategies, as far as they admit a CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.strategies import DeepSpeedStrategy as FabricStrategy
from lightning.pytorch.strategies import DeepSpeedStrategy
from torch.utils.data import DataLoader

from integration.clients.tiny import (
    Tokens,
    batches,
    collate,
    decaying,
    make_model,
    make_optimizer,
    train_plain,
)
from support.ranks import run_ranks

STEPS, MICRO = 4, 2


class _OnCpu:
    """Both strategies insist on CUDA devices with an index; nothing else of them needs one."""

    root_device = torch.device("cpu", 0)

    def setup_environment(self) -> None:
        self.parallel_devices = [torch.device("cpu", 0)]
        self.accelerator.setup_device(torch.device("cpu"))
        setup = getattr(self, "setup_distributed", None) or self._setup_distributed
        setup()


class FabricOnCpu(_OnCpu, FabricStrategy):
    pass


class LightningOnCpu(_OnCpu, DeepSpeedStrategy):
    pass


def loader(count: int = STEPS) -> DataLoader[Any]:
    return DataLoader(Tokens(count * MICRO), batch_size=MICRO, collate_fn=collate)


def make_fabric(stage: int):
    strategy = FabricOnCpu(stage=stage, reduce_bucket_size=1000)
    fabric = Fabric(accelerator="cpu", devices=1, strategy=strategy)
    fabric.launch()
    plain = make_model()
    model, optimizer = fabric.setup(plain, make_optimizer(plain.parameters()))
    return fabric, model, optimizer


def fabric_steps(fabric: Fabric, model: Any, optimizer: Any, data: Any) -> Iterator[float]:
    for batch in data:
        loss = model(**batch).loss
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()


def train_with_fabric(stage: int, folder: str) -> tuple[list[float], list[float], dict[str, Any]]:
    fabric, model, optimizer = make_fabric(stage)
    every = list(loader())
    losses = list(fabric_steps(fabric, model, optimizer, every[:2]))
    fabric.save(folder, {"model": model, "optimizer": optimizer, "seen": 2})
    losses += fabric_steps(fabric, model, optimizer, every[2:])
    fabric, model, optimizer = make_fabric(stage)
    state = {"model": model, "optimizer": optimizer, "seen": 0}
    fabric.load(folder, state)
    return losses, list(fabric_steps(fabric, model, optimizer, every[2:])), state["seen"]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_fabric_trains_as_plain_pytorch_and_resumes(stage, tmp_path):
    losses, again, seen = run_ranks(train_with_fabric, 1, stage, str(tmp_path / "saved"))[0]
    plain, _, _ = train_plain(  # gradients are clipped to 1 unless the configuration says otherwise
        steps=STEPS, batch=MICRO, micro_batches=1, max_norm=1.0, schedule=None
    )
    assert losses == pytest.approx(plain, rel=1e-5)
    assert again == pytest.approx(losses[2:], rel=1e-5)
    assert seen == 2


class Tower(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def cut_while_it_is_made() -> tuple[int, float, float]:
    strategy = FabricOnCpu(stage=3)
    fabric = Fabric(accelerator="cpu", devices=1, strategy=strategy)
    fabric.launch()
    with fabric.init_module():
        plain = Tower()
    held = sum(param.numel() for param in plain.parameters())
    model, optimizer = fabric.setup(plain, torch.optim.Adam(plain.parameters(), lr=0.05))
    losses = []
    for _ in range(5):
        loss = (model(torch.ones(8, 4)) - 1).square().mean()
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return held, losses[0], losses[-1]


def test_fabric_makes_a_module_in_shares():
    held, first, last = run_ranks(cut_while_it_is_made, 1)[0]
    assert held == 0
    assert last < first


class Learner(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []
        self.model = make_model()

    def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = self.model(**batch).loss
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> dict[str, Any]:
        optimizer = make_optimizer(self.parameters())
        schedule = {"scheduler": decaying(optimizer), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def fit(stage: int, folder: str, start: str | None, **options: Any) -> tuple[list[float], str]:
    learner = Learner()
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        strategy=LightningOnCpu(stage=stage, reduce_bucket_size=1000),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        use_distributed_sampler=False,
        **options,
    )
    trainer.fit(learner, loader(STEPS), ckpt_path=start)
    trainer.save_checkpoint(f"{folder}/after-{trainer.global_step}")
    return learner.losses, f"{folder}/after-{trainer.global_step}"


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_lightning_trains_as_plain_pytorch_and_resumes(stage, tmp_path):
    options = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}
    half, saved = run_ranks(fit, 1, stage, str(tmp_path), None, max_steps=2, **options)[0]
    rest, _ = run_ranks(fit, 1, stage, str(tmp_path), saved, max_steps=STEPS, **options)[0]
    epochs = batches(MICRO, STEPS) * 2  # two steps an epoch: the resumed run begins a new one
    plain, _, _ = train_plain(steps=STEPS, batch=MICRO, micro_batches=2, max_norm=0.5, data=epochs)
    assert half == pytest.approx(plain[:4], rel=1e-5)
    assert rest[-4:] == pytest.approx(plain[4:], rel=1e-5)  # Lightning looks at a batch twice
