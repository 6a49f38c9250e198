"""Names of parameters and buffers as the user's module knows them, ties by identity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from ds_core.errors import StateError

_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


def clean_name(name: str) -> str:
    """`name` without the prefixes that `torch.compile` and other wrappers insert."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


class ParameterNames:
    """The first name of each parameter of `module`, and its further names if it is tied."""

    def __init__(self, module: nn.Module) -> None:
        self.names: dict[nn.Parameter, str] = {}
        self.aliases: dict[nn.Parameter, tuple[str, ...]] = {}
        for raw, param in module.named_parameters(remove_duplicate=False):
            name = clean_name(raw)
            if param not in self.names:
                self.names[param], self.aliases[param] = name, ()
            elif name != self.names[param] and name not in self.aliases[param]:
                self.aliases[param] += (name,)

    def __getitem__(self, param: nn.Parameter) -> str:
        return self.names[param]

    def ordered(self, params: Iterable[nn.Parameter]) -> dict[nn.Parameter, str]:
        """Each of `params` once with its name, in the order of the module (sets have none)."""
        wanted = dict.fromkeys(params, "?")
        return {p: name for p, name in self.names.items() if p in wanted} | {
            p: name for p, name in wanted.items() if p not in self.names
        }

    def of(self, params: Iterable[nn.Parameter]) -> tuple[str, ...]:
        """The names of `params`, `?` for those the module does not know."""
        return tuple(self.names.get(param, "?") for param in params)


class FrozenParams:
    """The parameters of optimizer groups that were frozen when the strategy was made."""

    def __init__(self, groups: Iterable[Mapping[str, Any]], names: ParameterNames) -> None:
        self._names = names
        self._frozen = [p for group in groups for p in group["params"] if not p.requires_grad]

    def check(self) -> None:
        """Raise `StateError` if one of them was unfrozen: nothing reduces or updates it."""
        for param in self._frozen:
            if param.requires_grad:
                raise StateError(
                    f"'{self._names.names.get(param, '?')}' was frozen when the engine was made "
                    "and is not frozen now; make it trainable before initialize() and freeze it "
                    "afterwards, or destroy the engine and initialize again"
                )


def named_buffers(module: nn.Module) -> dict[str, Tensor]:
    """The buffers that belong into a checkpoint, by name (persistent ones, each once)."""
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for prefix, child in module.named_modules():
        for key, buffer in child._buffers.items():
            if buffer is None or key in child._non_persistent_buffers_set or id(buffer) in seen:
                continue
            seen.add(id(buffer))
            found[clean_name(f"{prefix}.{key}" if prefix else key)] = buffer
    return found
