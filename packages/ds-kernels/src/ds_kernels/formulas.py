"""The scalars of each update, computed once a step in double precision from a parameter group.

Each class mirrors a struct of `native/formulas.h`, where the formula itself is written down; the
compiled loops, the Triton kernels and the torch reference all take these same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

# A parameter group is the JSON edge: torch types its values as Any.
Group = Mapping[str, Any]


class Adam(NamedTuple):
    """`step` and `eps` hold the bias correction; `decay` is decoupled, `l2` joins the gradient."""

    scale: float
    mix1: float
    mix2: float
    step: float
    eps: float
    decay: float
    l2: float


class Adagrad(NamedTuple):
    """`step` holds the decayed learning rate."""

    scale: float
    step: float
    eps: float
    l2: float


class Lion(NamedTuple):
    """`mix1` weighs the gradient in the direction, `mix2` in the moment."""

    scale: float
    mix1: float
    mix2: float
    step: float
    decay: float


class Sgd(NamedTuple):
    """The update is `nesterov*g + carry*buffer`; the first step fills the buffer with g."""

    scale: float
    momentum: float
    gain: float
    nesterov: float
    carry: float
    step: float
    l2: float


class PlainSgd(NamedTuple):
    """Without momentum there is no buffer."""

    scale: float
    step: float
    l2: float


class Lamb(NamedTuple):
    """`gain` and `eps` hold the bias correction; `low` and `high` bound the trust ratio."""

    scale: float
    mix1: float
    mix2: float
    gain: float
    eps: float
    decay: float
    step: float
    low: float
    high: float


Formula = Adam | Adagrad | Lion | Sgd | PlainSgd | Lamb


def _signed(group: Group, grad_scale: float) -> float:
    return -grad_scale if group.get("maximize", False) else grad_scale


def _corrections(group: Group, step: int) -> tuple[float, float]:
    """The divisors of m and of sqrt(v)."""
    if not group.get("bias_correction", True):
        return 1.0, 1.0
    beta1, beta2 = group["betas"]
    return 1.0 - float(beta1) ** step, math.sqrt(1.0 - float(beta2) ** step)


def adam(group: Group, step: int, grad_scale: float) -> Adam:
    beta1, beta2 = group["betas"]
    lr, weight_decay = float(group["lr"]), float(group["weight_decay"])
    first, second = _corrections(group, step)
    decoupled = is_decoupled(group)
    return Adam(
        scale=_signed(group, grad_scale),
        mix1=1.0 - float(beta1),
        mix2=1.0 - float(beta2),
        step=lr * second / first,
        eps=float(group["eps"]) * second,
        decay=lr * weight_decay if decoupled else 0.0,
        l2=0.0 if decoupled else weight_decay,
    )


def is_decoupled(group: Group) -> bool:
    """AdamW's decay (True) or L2 in the gradient; a group may override torch's key by ours."""
    return bool(group.get("adamw_mode", group.get("decoupled_weight_decay", False)))


def adagrad(group: Group, step: int, grad_scale: float) -> Adagrad:
    return Adagrad(
        scale=_signed(group, grad_scale),
        step=float(group["lr"]) / (1.0 + (step - 1) * float(group.get("lr_decay", 0.0))),
        eps=float(group["eps"]),
        l2=float(group["weight_decay"]),
    )


def lion(group: Group, step: int, grad_scale: float) -> Lion:
    beta1, beta2 = group["betas"]
    lr = float(group["lr"])
    return Lion(
        scale=_signed(group, grad_scale),
        mix1=1.0 - float(beta1),
        mix2=1.0 - float(beta2),
        step=lr,
        decay=lr * float(group["weight_decay"]),
    )


def sgd(group: Group, step: int, grad_scale: float) -> Sgd | PlainSgd:
    """SGD as torch writes it: the buffer starts as the first gradient, undamped."""
    lr, l2 = float(group["lr"]), float(group["weight_decay"])
    momentum, dampening = float(group["momentum"]), float(group["dampening"])
    scale = _signed(group, grad_scale)
    if momentum == 0.0:
        return PlainSgd(scale=scale, step=lr, l2=l2)
    nesterov = bool(group["nesterov"])
    return Sgd(
        scale=scale,
        momentum=momentum if step > 1 else 0.0,
        gain=1.0 - dampening if step > 1 else 1.0,
        nesterov=1.0 if nesterov else 0.0,
        carry=momentum if nesterov else 1.0,
        step=lr,
        l2=l2,
    )


def lamb(group: Group, step: int, grad_scale: float) -> Lamb:
    beta1, beta2 = group["betas"]
    first, second = _corrections(group, step)
    return Lamb(
        scale=_signed(group, grad_scale),
        mix1=1.0 - float(beta1),
        mix2=1.0 - float(beta2),
        gain=second / first,
        eps=float(group["eps"]) * second,
        decay=float(group["weight_decay"]),
        step=float(group["lr"]),
        low=float(group["min_coeff"]),
        high=float(group["max_coeff"]),
    )


@dataclass(frozen=True)
class Rule:
    """How one algorithm turns a parameter group into scalars, and which moments it keeps."""

    name: str
    state_names: tuple[str, ...]
    scalars: Callable[[Group, int, float], Formula]


ADAM = Rule("adam", ("exp_avg", "exp_avg_sq"), adam)
ADAGRAD = Rule("adagrad", ("sum",), adagrad)
LION = Rule("lion", ("exp_avg",), lion)
SGD = Rule("sgd", ("momentum_buffer",), sgd)
LAMB = Rule("lamb", ("exp_avg", "exp_avg_sq"), lamb)
