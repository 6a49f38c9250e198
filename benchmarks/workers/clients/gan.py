"""Two engines in one process, which train against each other: a GAN.

As is: one backward for the judge, which in the maker's turn is its frozen module. `--tutorial`: the
loop of the GAN tutorial, two backward passes for the judge, and the maker's runs through the
judge's weights too. `--plain`: without any library.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from toy import answer, mean_over_ranks

import deepspeed

BATCH, NOISE, WIDTH = 16, 3, 5


class Plain:
    """What an engine does here, in plain PyTorch."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.optimizer = torch.optim.Adam(module.parameters(), lr=0.01, betas=(0.5, 0.999))

    def __call__(self, inputs: Tensor) -> Tensor:
        return self.module(inputs)

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self) -> None:
        for param in self.module.parameters():
            torch.distributed.all_reduce(param.grad)
            param.grad /= torch.distributed.get_world_size()
        nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        self.zero_grad()

    def zero_grad(self) -> None:
        self.module.zero_grad()


def make_engine(module: nn.Module, stage: int, plain: bool):
    if plain:
        return Plain(module)
    adam = {"lr": 0.01, "betas": [0.5, 0.999], "torch_adam": True}
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "Adam", "params": adam},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    parameters = list(module.parameters())
    return deepspeed.initialize(model=module, model_parameters=parameters, config=config)[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=0)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--tutorial", action="store_true", help="the loop of the tutorial")
    parser.add_argument("--plain", action="store_true", help="without any library")
    args = parser.parse_args()
    deepspeed.init_distributed(dist_backend="gloo")
    torch.manual_seed(0)
    maker = nn.Sequential(nn.Linear(NOISE, 16), nn.ReLU(), nn.Linear(16, WIDTH))
    judge = nn.Sequential(nn.Linear(WIDTH, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    makes = make_engine(maker, args.stage, args.plain)
    judges = make_engine(judge, args.stage, args.plain)
    criterion = nn.BCEWithLogitsLoss()
    losses = []
    for step in range(args.steps):
        generator = torch.Generator().manual_seed(2 * step + torch.distributed.get_rank())
        real = torch.randn(BATCH, WIDTH, generator=generator)
        noise = torch.randn(BATCH, NOISE, generator=generator)
        judges.zero_grad()
        verdict = judges(real)
        on_real = criterion(verdict, torch.ones_like(verdict))
        if args.tutorial:
            judges.backward(on_real)
        fake = makes(noise)
        verdict = judges(fake.detach())
        on_fake = criterion(verdict, torch.zeros_like(verdict))
        judges.backward(on_fake if args.tutorial else on_real + on_fake)
        judges.step()
        makes.zero_grad()
        judge.requires_grad_(args.tutorial)
        verdict = judges(fake) if args.tutorial else judge(fake)
        fooled = criterion(verdict, torch.ones_like(verdict))
        makes.backward(fooled)
        makes.step()
        judge.requires_grad_(True)
        losses += [mean_over_ranks(loss) for loss in (on_real, on_fake, fooled)]
    answer(losses)


if __name__ == "__main__":
    main()
