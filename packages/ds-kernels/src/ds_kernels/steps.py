"""Optimizer steps as functions over plain CPU tensors, for those who own the memory themselves.

Every tensor argument takes one tensor or a sequence of them (several parameters in one call, which
share threads). Tensors are contiguous CPU memory in float32, bfloat16 or float16, in any mixture
(the moments of one parameter share a dtype); slices of flat buffers are welcome. Arithmetic is
float32; numbers below 1.2e-38 count as zero. Results do not depend on the number of threads or
on where a buffer is cut.

With `queue` the call returns at once and `wait()` on its result blocks; without, the result is
already done. `grad_scale` multiplies every gradient before use (unscaling and clipping in one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ds_kernels import backend
from ds_kernels.errors import OptionError, TensorError
from ds_kernels.formulas import ADAGRAD, ADAM, LAMB, LION, SGD, Rule
from ds_kernels.lanes import Lane
from ds_kernels.pending import PendingStep, StepQueue

Tensors = Tensor | Sequence[Tensor]


def adam_step(
    master: Tensors,
    grad: Tensors,
    exp_avg: Tensors,
    exp_avg_sq: Tensors,
    out: Tensors | None = None,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    adamw_mode: bool = True,
    bias_correction: bool = True,
    grad_scale: float = 1.0,
    queue: StepQueue | None = None,
) -> PendingStep:
    """Adam (AdamW unless `adamw_mode` is false) in place; `step` counts from 1."""
    group = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
    group |= {"adamw_mode": adamw_mode, "bias_correction": bias_correction}
    lanes = lanes_of(master, grad, {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}, out)
    return start(ADAM, lanes, group, step, grad_scale, queue)


def adagrad_step(
    master: Tensors,
    grad: Tensors,
    sum: Tensors,
    out: Tensors | None = None,
    *,
    step: int,
    lr: float,
    lr_decay: float = 0.0,
    eps: float = 1e-10,
    weight_decay: float = 0.0,
    grad_scale: float = 1.0,
    queue: StepQueue | None = None,
) -> PendingStep:
    """Adagrad in place; `sum` holds the squares seen so far."""
    group = {"lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay}
    return start(ADAGRAD, lanes_of(master, grad, {"sum": sum}, out), group, step, grad_scale, queue)


def lion_step(
    master: Tensors,
    grad: Tensors,
    exp_avg: Tensors,
    out: Tensors | None = None,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.99),
    weight_decay: float = 0.0,
    grad_scale: float = 1.0,
    queue: StepQueue | None = None,
) -> PendingStep:
    """Lion in place, with decoupled weight decay."""
    group = {"lr": lr, "betas": betas, "weight_decay": weight_decay}
    lanes = lanes_of(master, grad, {"exp_avg": exp_avg}, out)
    return start(LION, lanes, group, 1, grad_scale, queue)


def sgd_step(
    master: Tensors,
    grad: Tensors,
    momentum_buffer: Tensors | None = None,
    out: Tensors | None = None,
    *,
    step: int,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    grad_scale: float = 1.0,
    queue: StepQueue | None = None,
) -> PendingStep:
    """SGD in place; with momentum, `step` 1 fills `momentum_buffer` with the gradient."""
    if momentum and momentum_buffer is None:
        raise OptionError(f"momentum={momentum} needs a momentum_buffer")
    group = {"lr": lr, "momentum": momentum, "dampening": dampening, "nesterov": nesterov}
    group["weight_decay"] = weight_decay
    states = (
        {"momentum_buffer": momentum_buffer} if momentum and momentum_buffer is not None else {}
    )
    return start(SGD, lanes_of(master, grad, states, out), group, step, grad_scale, queue)


def lamb_step(
    master: Tensors,
    grad: Tensors,
    exp_avg: Tensors,
    exp_avg_sq: Tensors,
    out: Tensors | None = None,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    bias_correction: bool = True,
    min_coeff: float = 0.01,
    max_coeff: float = 10.0,
    grad_scale: float = 1.0,
) -> list[float]:
    """LAMB in place over whole parameters (the norms need them); returns the trust ratios."""
    group = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
    group |= {"bias_correction": bias_correction, "min_coeff": min_coeff, "max_coeff": max_coeff}
    lanes = lanes_of(master, grad, {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}, out)
    return backend.select().run(LAMB.scalars(group, step, grad_scale), lanes)


def start(
    rule: Rule,
    lanes: list[Lane],
    group: Mapping[str, Any],
    step: int,
    grad_scale: float,
    queue: StepQueue | None,
) -> PendingStep:
    """Run or enqueue one update."""
    if step < 1:
        raise OptionError(f"step is {step}; steps count from 1")
    way, scalars = backend.select(), rule.scalars(group, step, grad_scale)
    if queue is not None:
        return queue.submit(way, scalars, lanes)
    way.run(scalars, lanes)
    return PendingStep(None, ())


def lanes_of(
    master: Tensors, grad: Tensors, states: Mapping[str, Tensors], out: Tensors | None
) -> list[Lane]:
    """Zip the arguments of a step into lanes; sequences must be equally long."""
    masters = _listed(master)
    columns = {"grad": _listed(grad)} | {name: _listed(value) for name, value in states.items()}
    outs: list[Tensor | None] = [None] * len(masters) if out is None else [*_listed(out)]
    lengths = {name: len(column) for name, column in columns.items()} | {"out": len(outs)}
    for name, length in lengths.items():
        if length != len(masters):
            raise TensorError(f"{name} has {length} tensors; master has {len(masters)}")
    single = isinstance(master, Tensor)
    names = tuple(states)
    return [
        Lane(
            param=masters[i],
            grad=columns["grad"][i],
            states=tuple(columns[name][i] for name in names),
            out=outs[i],
            label="master" if single else f"master[{i}]",
            state_names=names,
        )
        for i in range(len(masters))
    ]


def _listed(value: Tensors) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else list(value)
