"""How heavy each layer is, found without keeping it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ds_core.errors import ConfigError
from ds_pipeline.specs import LayerSpec, TiedLayerSpec


def class_names(layers: Sequence[Any]) -> list[str]:
    """The class (or function) name of each layer."""
    return [_name(layer) for layer in layers]


def _name(layer: Any) -> str:
    if isinstance(layer, LayerSpec):
        return layer.typename.__name__
    return (
        type(layer).__name__
        if isinstance(layer, nn.Module)
        else getattr(layer, "__name__", type(layer).__name__)
    )


def parameter_counts(layers: Sequence[Any]) -> list[int]:
    """Trained parameters of each layer; specs are built without memory where they allow it."""
    with torch.random.fork_rng(devices=[]):
        return [_count(layer) for layer in layers]


def _count(layer: Any) -> int:
    if isinstance(layer, LayerSpec):
        try:
            with torch.device("meta"):
                built = layer.build()
        except (RuntimeError, NotImplementedError):  # reads values of its weights when built
            built = layer.build()
        layer = built
    if not isinstance(layer, nn.Module):
        return 0
    return sum(param.numel() for param in layer.parameters() if param.requires_grad)


def measured_times(layers: Sequence[Any], example: Any, *, first: bool) -> list[float]:
    """Seconds of forward and backward of each layer on `example`, where `first` is set."""
    if example is None:
        raise ConfigError("partition_method 'profile' needs example_input, one input of the model")
    times = [0.0] * len(layers)
    if not first:
        return times
    tied: dict[str, nn.Module] = {}
    value = example
    with torch.random.fork_rng(devices=[]):
        for index, layer in enumerate(layers):
            run = _runnable(layer, tied)
            times[index], value = min(
                (_timed(run, value) for _ in range(3)), key=lambda result: result[0]
            )
    return times


def _runnable(layer: Any, tied: dict[str, nn.Module]) -> Callable[[Any], Any]:
    if isinstance(layer, TiedLayerSpec):
        module = tied.setdefault(layer.key, layer.build())
        forward = layer.forward_fn
        return module if forward is None else lambda value: forward(module, value)
    return layer.build() if isinstance(layer, LayerSpec) else layer


def _timed(run: Callable[[Any], Any], value: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    output = run(value)
    outputs = output if isinstance(output, tuple) else (output,)
    roots = [o.float().sum() for o in outputs if torch.is_tensor(o) and o.requires_grad]
    if roots:
        torch.autograd.backward(roots)
    stop = time.perf_counter()
    detached = tuple(o.detach() if torch.is_tensor(o) else o for o in outputs)
    return stop - start, detached if isinstance(output, tuple) else detached[0]
