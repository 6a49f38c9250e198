"""Small models and plain PyTorch training runs that strategies are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

VOCABULARY, WIDTH, LENGTH = 17, 8, 5


class Awkward(nn.Module):
    """A tiny language model with everything that trips sharding up.

    Tied embedding and head, a block called twice, a branch never used, a branch used on odd
    micro-batches only, a parameter without elements, a scalar, a frozen layer and a buffer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.block = nn.Sequential(
            nn.Linear(WIDTH, 3 * WIDTH), nn.GELU(), nn.Linear(3 * WIDTH, WIDTH)
        )
        self.norm = nn.LayerNorm(WIDTH)
        self.sometimes = nn.Linear(WIDTH, WIDTH)
        self.never = nn.Linear(WIDTH, WIDTH)
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.register_buffer("shift", torch.linspace(0, 1, WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor, targets: Tensor, detour: bool = False) -> Tensor:
        hidden = self.embed(tokens)
        hidden = hidden + self.shift.to(hidden.dtype)
        hidden = hidden + self.block(self.block(hidden))
        if detour:
            hidden = hidden + self.sometimes(hidden)
        hidden = self.norm(self.frozen(hidden)) * self.gain + self.empty.sum()
        logits = self.head(hidden).float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_model(seed: int = 0) -> Awkward:
    """The same weights for the same seed, in fp32."""
    torch.manual_seed(seed)
    return Awkward()


def make_batch(step: int, micro: int, rank: int) -> tuple[Tensor, Tensor, bool]:
    """Tokens, targets and whether to take the detour; a function of its arguments only."""
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro + rank)
    tokens = torch.randint(VOCABULARY, (2, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:], (micro + rank) % 2 == 1


@dataclass
class Run:
    """What a training run left: losses and norms by step, and the final weights."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)


MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute as the ranks do: sums over two threads have other last bits, which Adam enlarges."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def adamw(params: Any) -> torch.optim.Optimizer:
    """The optimizer of the contract grid."""
    return torch.optim.AdamW(params, lr=0.01, weight_decay=0.1, foreach=False)


@one_thread()
def plain_run(
    *,
    steps: int,
    accumulation: int,
    world_size: int,
    max_norm: float = 0.0,
    dtype: torch.dtype = torch.float32,
    make_optimizer: MakeOptimizer = adamw,
) -> Run:
    """Train on all ranks' batches in one process with plain PyTorch.

    For a low `dtype` the model computes in it, fp32 masters are updated, and gradients are summed
    in fp32, by hand.
    """
    model = make_model()
    masters = {name: nn.Parameter(p.detach().clone()) for name, p in model.named_parameters()}
    for name, param in model.named_parameters():
        masters[name].requires_grad_(param.requires_grad)
    for param in model.parameters():
        param.data = param.data.to(dtype)
    trained = [masters[name] for name, p in model.named_parameters() if p.requires_grad]
    optimizer = make_optimizer(trained)
    run = Run()
    for step in range(steps):
        total = 0.0
        for micro in range(accumulation):
            for rank in range(world_size):
                loss = model(*make_batch(step, micro, rank))
                total += loss.item()
                loss.backward()
                _collect(model, masters, accumulation * world_size)
        run.losses.append(total / (accumulation * world_size))
        run.norms.append(_norm(trained))
        if max_norm:
            nn.utils.clip_grad_norm_(trained, max_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            for name, param in model.named_parameters():
                param.copy_(masters[name])
    run.weights = {name: value.detach() for name, value in masters.items()}
    return run


def _collect(model: nn.Module, masters: dict[str, nn.Parameter], divisor: int) -> None:
    for name, param in model.named_parameters():
        if param.grad is None:
            continue
        grad = param.grad.float() / divisor
        master = masters[name]
        master.grad = grad if master.grad is None else master.grad + grad
        param.grad = None


def _norm(params: list[nn.Parameter]) -> float:
    grads = [p.grad.flatten() for p in params if p.grad is not None]
    return float(torch.cat(grads).norm())


def engine_run(
    engine: Any, *, steps: int, accumulation: int, masters: Callable[[nn.Parameter], Tensor]
) -> Run:
    """Train `engine` on this rank's batches; losses are averaged over ranks."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    run = Run()
    for step in range(steps):
        total = torch.zeros(())
        for micro in range(accumulation):
            loss = engine(*make_batch(step, micro, rank))
            engine.backward(loss)
            report = engine.step()
            total += loss.detach().float()
        if dist.is_initialized():
            dist.all_reduce(total)
            total /= dist.get_world_size()
        run.losses.append(total.item() / accumulation)
        run.norms.append(report.grad_norm)
    run.weights = {
        name: masters(param).detach().float().clone()
        for name, param in engine.module.named_parameters()
    }
    return run


def assert_same_run(ours: Run, plain: Run, *, rtol: float, atol: float) -> None:
    """Losses, norms and every weight agree; the message names the first that does not."""
    torch.testing.assert_close(
        torch.tensor(ours.losses),
        torch.tensor(plain.losses),
        rtol=rtol,
        atol=atol,
        msg=_about("losses"),
    )
    torch.testing.assert_close(
        torch.tensor(ours.norms),
        torch.tensor(plain.norms),
        rtol=rtol,
        atol=atol,
        msg=_about("norms"),
    )
    assert ours.weights.keys() == plain.weights.keys()
    for name, value in plain.weights.items():
        torch.testing.assert_close(
            ours.weights[name], value, rtol=rtol, atol=atol, msg=_about(name)
        )


def _about(name: str) -> Callable[[str], str]:
    return lambda message: f"{name}: {message}"
