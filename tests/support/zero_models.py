"""Models and runs that the tests of ds-zero share."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ds_core.engine import Engine
from ds_core.groups import make_groups
from ds_core.precision import PrecisionSettings
from ds_zero.factory import make
from ds_zero.sections import ZeroSection
from ds_zero.strategy import Setup
from support.strategies_zero import DictStore


class Reference(nn.Module):
    """The model whose checkpoints in `data` the reference wrote: ties, frozen layers, a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(17, 8)
        self.l1 = nn.Linear(8, 24)
        self.l2 = nn.Linear(24, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 17, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("shift", torch.linspace(0, 1, 8))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        hidden = self.embed(tokens) + self.shift.to(self.embed.weight.dtype)
        hidden = hidden + self.l2(nn.functional.gelu(self.l1(hidden)))
        logits = self.head(self.norm(self.frozen(hidden))).float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets of a step; a function of its arguments only."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    tokens = torch.randint(17, (2, 6), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def two_groups(module: nn.Module) -> list[dict[str, Any]]:
    """Matrices decay, vectors do not."""
    params = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in params if _dims(p) > 1], "weight_decay": 0.1},
        {"params": [p for p in params if _dims(p) == 1], "weight_decay": 0.0},
    ]


def _dims(param: nn.Parameter) -> int:
    return len(getattr(param, "ds_shape", param.shape))


def engine_of(
    section: ZeroSection,
    module: nn.Module,
    *,
    dtype: torch.dtype | None = None,
    groups: list[dict[str, Any]] | None = None,
    accumulation: int = 1,
    max_norm: float = 1.0,
) -> Engine:
    """An engine over `module` with AdamW at rate 0.01."""
    ranks = make_groups()
    setup = Setup(
        module,
        groups or two_groups(module),
        lambda params: torch.optim.AdamW(params, lr=0.01),
        ranks,
        PrecisionSettings(dtype),
        max_norm=max_norm,
    )
    strategy = make(section, setup, device=torch.device("cpu"), make_store=lambda path: DictStore())
    return Engine(module, strategy, groups=ranks, accumulation_steps=accumulation)


def train(engine: Engine, steps: range) -> list[float]:
    """Losses on this rank's batches."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    losses = []
    for step in steps:
        loss = engine(*batch(step, rank))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses
