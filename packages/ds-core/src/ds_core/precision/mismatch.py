"""What to add when torch complains about formats that do not go together in the forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ds_core.precision.master import LOW_PRECISION

_SHORT = {torch.bfloat16: "bf16", torch.float16: "fp16"}
_MOST_NAMED = 3


def explain_formats(
    error: RuntimeError, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> None:
    """Append to torch's words which inputs or buffers are of another format than the weights.

    Nothing is added where the error is about something else.
    """
    weights = _format_of(module)
    text = str(error)
    if weights is None or "type" not in text:
        return
    others = [
        f"{path} is {tensor.dtype}"
        for path, tensor in _named(args, kwargs)
        if tensor.is_floating_point() and tensor.dtype != weights
    ]
    if others:
        advice = f"{_some(others)}; convert it, e.g. x.to({weights}){_by_config(weights)}"
    elif weights in LOW_PRECISION:
        advice = _within(module, weights)
    else:
        return
    error.args = (f"{text}\nThe weights of the model are {weights}, but {advice}.",)


def _within(module: nn.Module, weights: torch.dtype) -> str:
    buffers = [
        f"buffer {name} is {buffer.dtype}"
        for name, buffer in module.named_buffers()
        if buffer.is_floating_point() and buffer.dtype != weights
    ]
    what = _some(buffers) if buffers else "a tensor made in its forward seems not to be"
    return f"{what}; convert it where it is used, e.g. value.to(x.dtype)"


def _by_config(weights: torch.dtype) -> str:
    if weights not in LOW_PRECISION:
        return ""
    short = _SHORT[weights]
    cast = "set fp16.auto_cast to true, or " if short == "fp16" else ""
    return f", or {cast}add torch_autocast: {{enabled: true, dtype: {short}}} to the configuration"


def _format_of(module: nn.Module) -> torch.dtype | None:
    """The format of the floating-point parameters, if they have one in common."""
    found = {param.dtype for param in module.parameters() if param.is_floating_point()}
    return found.pop() if len(found) == 1 else None


def _named(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    yield from _tensors("args", args)
    for name, value in kwargs.items():
        yield from _tensors(name, value)


def _tensors(path: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(f"{path}[{key!r}]", item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _tensors(f"{path}[{index}]", item)


def _some(found: list[str]) -> str:
    rest = len(found) - _MOST_NAMED
    return ", ".join(found[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")


__all__ = ["explain_formats"]
