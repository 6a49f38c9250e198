"""Each optimizer beside the torch optimizer (or paper's formula) it must agree with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

import ds_kernels


class PaperLion(torch.optim.Optimizer):
    """Lion as in the paper (Chen et al., 2023, algorithm 2)."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float], weight_decay: float):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                direction = (beta1 * m + (1 - beta1) * p.grad).sign()
                p -= group["lr"] * (direction + group["weight_decay"] * p)
                m.copy_(beta2 * m + (1 - beta2) * p.grad)


class PaperLamb(torch.optim.Optimizer):
    """LAMB as in the paper (You et al., 2020, algorithm 2), with a clipped trust ratio."""

    def __init__(self, params: Any, lr: float, weight_decay: float, bounds=(0.01, 10.0)):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "bounds": bounds})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                t = state["t"] = state.get("t", 0) + 1
                m = state.setdefault("m", torch.zeros_like(p))
                v = state.setdefault("v", torch.zeros_like(p))
                m.copy_(0.9 * m + 0.1 * p.grad)
                v.copy_(0.999 * v + 0.001 * p.grad**2)
                u = m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
                u += group["weight_decay"] * p
                low, high = group["bounds"]
                ratio = (p.norm() / u.norm()).clamp(low, high) if p.norm() > 0 else 1.0
                p -= group["lr"] * ratio * u


@dataclass(frozen=True)
class Case:
    """Ours, theirs, the settings both take and those only ours takes."""

    ours: Callable[..., torch.optim.Optimizer]
    theirs: Callable[..., torch.optim.Optimizer]
    settings: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)

    def pair(self, ours: Any, theirs: Any, **more: Any) -> tuple[Any, Any]:
        """Both optimizers over their own copies."""
        settings = self.settings | more
        return self.ours(ours, **settings, **self.extra), self.theirs(theirs, **settings)


CASES = {
    "adamw": Case(ds_kernels.CPUAdam, torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1}),
    "adamw_no_decay": Case(
        ds_kernels.CPUAdamW, torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.0}
    ),
    "adam_l2": Case(
        ds_kernels.CPUAdam,
        torch.optim.Adam,
        {"lr": 1e-2, "weight_decay": 0.1, "betas": (0.8, 0.95)},
        {"adamw_mode": False},
    ),
    "adam_maximize": Case(
        ds_kernels.CPUAdam, torch.optim.AdamW, {"lr": 1e-2, "maximize": True, "weight_decay": 0.01}
    ),
    "adagrad": Case(ds_kernels.CPUAdagrad, torch.optim.Adagrad, {"lr": 1e-2}),
    "adagrad_decay": Case(
        ds_kernels.CPUAdagrad,
        torch.optim.Adagrad,
        {"lr": 1e-2, "weight_decay": 0.1, "lr_decay": 0.1, "initial_accumulator_value": 0.5},
    ),
    "sgd": Case(ds_kernels.CPUSGD, torch.optim.SGD, {"lr": 1e-2, "weight_decay": 0.1}),
    "sgd_damped": Case(
        ds_kernels.CPUSGD, torch.optim.SGD, {"lr": 1e-2, "momentum": 0.9, "dampening": 0.5}
    ),
    "sgd_nesterov": Case(
        ds_kernels.CPUSGD,
        torch.optim.SGD,
        {"lr": 1e-2, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    ),
    "lion": Case(
        ds_kernels.CPULion, PaperLion, {"lr": 1e-3, "betas": (0.9, 0.98), "weight_decay": 0.1}
    ),
    "lamb": Case(ds_kernels.CPULamb, PaperLamb, {"lr": 1e-2, "weight_decay": 0.1}),
    "lamb_no_decay": Case(ds_kernels.CPULamb, PaperLamb, {"lr": 1e-2, "weight_decay": 0.0}),
}


def parameters(values: list[torch.Tensor], dtype: torch.dtype) -> list[torch.nn.Parameter]:
    """Parameters with these values (and strides) in another dtype."""
    return [torch.nn.Parameter(value.to(dtype, copy=True)) for value in values]


def give_grads(*models: list[torch.nn.Parameter]) -> None:
    """The same fresh gradients for the same parameters of several copies."""
    for params in zip(*models, strict=True):
        grad = torch.randn(params[0].shape)
        for param in params:
            param.grad = grad.to(param.dtype)


def worst(actual: list[torch.nn.Parameter], exact: list[torch.nn.Parameter]) -> float:
    """Largest difference, relative to the largest value of its tensor."""
    pairs = [(a.detach().double(), e.detach().double()) for a, e in zip(actual, exact, strict=True)]
    return max(
        float((a - e).abs().max() / e.abs().max().clamp(min=1e-3)) for a, e in pairs if a.numel()
    )


def spread(actual: list[torch.nn.Parameter], exact: list[torch.nn.Parameter]) -> float:
    """Root mean square difference over all elements."""
    pairs = zip(actual, exact, strict=True)
    gaps = [(a.detach().double() - e.detach().double()).flatten() for a, e in pairs]
    return float(torch.cat(gaps).square().mean().sqrt())
