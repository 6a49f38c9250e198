"""What a model has to be like before an engine is built over it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from ds_core.engine import Engine
from ds_core.errors import ConfigError, StateError
from ds_core.naming import named_buffers


def require_module(model: nn.Module) -> None:
    """Raise `ConfigError` for what is an engine already."""
    if isinstance(model, Engine):
        raise ConfigError(
            f"model is a {type(model).__name__} already; call initialize() once for a module, or "
            "give it the engine's own: initialize(model=engine.module)"
        )


def require_values(model: nn.Module) -> None:
    """Raise `ConfigError` if a parameter has no memory, or a saved buffer no dense one."""
    for name, param in model.named_parameters():
        if isinstance(param, UninitializedParameter):
            raise ConfigError(
                f"parameter {name} is of a lazy module and has no shape yet; call the model once, "
                "so that it gets one, before initialize()"
            )
        if param.is_meta:
            raise ConfigError(
                f"parameter {name} is on the meta device and has no values; build the model under "
                "deepspeed.zero.Init(), or give it memory with model.to_empty(device=...) and load "
                "or initialise its weights"
            )
    for name, buffer in named_buffers(model).items():
        if buffer.layout is not torch.strided:
            raise ConfigError(
                f"buffer {name} is {buffer.layout}, which ranks can neither exchange nor save; "
                "make it dense, or keep it out with register_buffer(..., persistent=False)"
            )


def give_own_memory(model: nn.Module) -> None:
    """Let each element of expanded parameters and buffers have a place: they are written to."""
    for tensor in (*model.parameters(), *named_buffers(model).values()):
        sides = zip(tensor.stride(), tensor.shape, strict=True)
        if any(step == 0 and size > 1 for step, size in sides):
            tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)


def require_own_parameters(model: nn.Module, groups: list[dict[str, Any]]) -> None:
    """Raise `ConfigError` if a group holds a parameter of another model."""
    own = set(model.parameters())
    for number, group in enumerate(groups):
        for param in group["params"]:
            if param not in own:
                raise ConfigError(
                    f"parameter group {number} holds a parameter of shape {tuple(param.shape)} "
                    f"that is not in the model ({type(model).__name__}); give initialize() the "
                    "model these parameters belong to"
                )


def require_no_other_engine(model: nn.Module, groups: list[dict[str, Any]]) -> None:
    """Raise `StateError` if another engine shards what is to be trained: it takes the gradients."""
    trained = {param for group in groups for param in group["params"] if param.requires_grad}
    for name, param in model.named_parameters():
        if param in trained and param in getattr(param, "ds_access", ()):
            raise StateError(
                f"'{name}' belongs to another engine, at ZeRO stage 1, 2 or 3; call its destroy() "
                "before initialize() is called again for the same model, or train a copy"
            )
