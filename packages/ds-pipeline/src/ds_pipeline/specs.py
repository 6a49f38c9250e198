"""Layers that are described first and built where they are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ds_core.errors import ConfigError


class LayerSpec:
    """A layer to be built by the rank that owns it.

        LayerSpec(nn.Linear, 16, 16, bias=False)

    Args:
        typename: a subclass of `nn.Module`.
        module_args, module_kwargs: passed to it.
    """

    def __init__(self, typename: type[nn.Module], *module_args: Any, **module_kwargs: Any) -> None:
        if not (isinstance(typename, type) and issubclass(typename, nn.Module)):
            raise ConfigError(
                f"a LayerSpec builds a subclass of nn.Module, not {typename!r}; put a function "
                "into the list of layers as it is"
            )
        self.typename = typename
        self.module_args, self.module_kwargs = module_args, module_kwargs

    def build(self, log: bool = False) -> nn.Module:
        """A new instance; `log` is accepted and has no effect."""
        return self.typename(*self.module_args, **self.module_kwargs)

    def __repr__(self) -> str:
        arguments = [repr(value) for value in self.module_args]
        arguments += [f"{key}={value!r}" for key, value in self.module_kwargs.items()]
        return f"{type(self).__name__}({self.typename.__name__}({', '.join(arguments)}))"


class TiedLayerSpec(LayerSpec):
    """A layer that shares its parameters with all others of the same `key`.

    On one stage they are one module; on several, each stage has a copy, and the copies' gradients
    are summed, so that they stay equal to the bit. What the copies have in common (same name,
    same shape) is tied, at least `tied_weight_attr`.

    Args:
        key: which layers belong together.
        typename: as in `LayerSpec`; on each stage the first spec of a key is built.
        forward_fn: called as `forward_fn(module, inputs)` in place of the module, e.g. to use an
            embedding as the output layer.
        tied_weight_attr: attributes that must exist, dotted if nested: `"inner.weight"`.
    """

    def __init__(
        self,
        key: str,
        typename: type[nn.Module],
        *module_args: Any,
        forward_fn: Callable[[Any, Any], Any] | None = None,
        tied_weight_attr: str | Sequence[str] = ("weight",),
        **module_kwargs: Any,
    ) -> None:
        super().__init__(typename, *module_args, **module_kwargs)
        self.key = key
        self.forward_fn = forward_fn
        given = [tied_weight_attr] if isinstance(tied_weight_attr, str) else list(tied_weight_attr)
        self.tied_weight_attr = given
