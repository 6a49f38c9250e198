"""Giving a model back as it was found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ds_profiler.errors import UsageError
from ds_profiler.modules import buffers_of, modules_of, parameters_of


@contextmanager
def untouched(model: nn.Module, *, training: bool | None = None) -> Iterator[None]:
    """Inside, `model` may run forward and backward; afterwards nothing of it has changed.

    Kept are gradients, buffers, the training flag of every module, and the random state of the
    CPU and of the model's devices.

    Args:
        model: the model.
        training: puts the model in training (True) or evaluation (False) mode meanwhile.
    """
    modules, parameters = modules_of(model), parameters_of(model)
    _require_shapes(model, [*parameters, *buffers_of(model)])
    flags = [(module, module.training) for module in modules]
    grads = [(parameter, parameter.grad) for parameter in parameters]
    buffers = [(buffer, buffer.detach().clone()) for buffer in buffers_of(model)]
    # A forward may put another tensor in a buffer's place. (Scripted modules keep no dict.)
    tables = [m._buffers for m in modules if isinstance(m._buffers, dict)]
    places = [(table, dict(table)) for table in tables]
    devices = {p.device.index for p in parameters if p.device.type == "cuda"}
    if training is not None:
        model.train(training)
    try:
        with torch.random.fork_rng([d for d in devices if d is not None]):
            for parameter, _ in grads:
                parameter.grad = None
            yield
    finally:
        for module, flag in flags:
            module.training = flag
        for parameter, grad in grads:
            parameter.grad = grad
        for table, before in places:
            table.update(before)
        with torch.no_grad():
            for buffer, value in buffers:
                if buffer.device.type != "meta" and not torch.equal(buffer, value):
                    buffer.copy_(value)


def _require_shapes(model: nn.Module, tensors: list[Tensor]) -> None:
    lazy = next((tensor for tensor in tensors if is_lazy(tensor)), None)
    if lazy is None:
        return
    names = [
        n for n, tensor in (*model.named_parameters(), *model.named_buffers()) if tensor is lazy
    ]
    raise UsageError(f"{names[0]} has no shape yet: run the model once, then profile it")
