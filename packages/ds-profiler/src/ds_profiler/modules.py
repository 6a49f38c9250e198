"""The modules of a model and their tensors, in a time that grows with their number alone.

PyTorch's own iterators hand every item up through all the levels above it, which for a model that
nests deep takes longer than profiling it.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ds_profiler.errors import UsageError


def require_module(model: Any) -> None:
    """Raise a UsageError unless `model` is a `torch.nn.Module`."""
    if isinstance(model, nn.Module):
        return
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise UsageError(f"a model is needed, got the class: make one, {model.__name__}(...)")
    raise UsageError(
        f"a torch.nn.Module is needed, got a {type(model).__name__}: pass the module that it "
        "runs, and it as call=, or make a module whose forward is it"
    )


def modules_of(root: nn.Module, seen: set[nn.Module] | None = None) -> list[nn.Module]:
    """The distinct modules in the order of `root.modules()`; those in `seen`, which grows, not."""
    seen = set() if seen is None else seen
    found, left = [], [root]
    while left:
        module = left.pop()
        if module in seen:
            continue
        seen.add(module)
        found.append(module)
        left += [child for child in reversed(module._modules.values()) if child is not None]
    return found


def parameters_of(root: nn.Module) -> list[nn.Parameter]:
    """The distinct parameters in the order of `root.parameters()`."""
    found = {p: None for m in modules_of(root) for p in m._parameters.values() if p is not None}
    return list(found)


def buffers_of(root: nn.Module) -> list[Tensor]:
    """The distinct buffers in the order of `root.buffers()`."""
    found = {b: None for m in modules_of(root) for b in m._buffers.values() if b is not None}
    return list(found)
