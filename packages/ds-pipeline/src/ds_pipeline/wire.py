"""What passes between stages: nested values as one flat message, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ds_pipeline.errors import PipelineError

ALIGN = 64
WORD = 8
"""Bytes at the end of a message: 0, or the length of the description of a new layout."""

Facts = tuple[torch.dtype, tuple[int, ...], bool]
"""dtype, shape and requires_grad of a tensor."""


@dataclass(frozen=True)
class Layout:
    """What a message looks like; two equal ones need no new description.

    Attributes:
        tree: nesting and plain values; tensors by number.
        tensors: in the order they lie in the message.
        offsets: where each begins, in bytes.
        size: bytes of the message with its last word.
    """

    tree: Any
    tensors: tuple[Facts, ...]
    offsets: tuple[int, ...] = ()
    size: int = WORD

    @classmethod
    def of(cls, value: Any, before: Layout | None = None) -> tuple[Layout, list[Tensor]]:
        """The layout of `value`, `before` itself if that is equal, and the tensors."""
        tensors: list[Tensor] = []
        tree = _tree(value, tensors)
        facts = tuple((t.dtype, tuple(t.shape), t.requires_grad) for t in tensors)
        if before is not None and before.tensors == facts and before.tree == tree:
            return before, tensors
        return cls.over(tree, facts), tensors

    @classmethod
    def over(cls, tree: Any, facts: tuple[Facts, ...]) -> Layout:
        """Place tensors one after the other."""
        offsets, end = [], 0
        for dtype, shape, _ in facts:
            offsets.append(end)
            size = dtype.itemsize
            for dim in shape:
                size *= dim
            end += -(-size // ALIGN) * ALIGN
        return cls(tree, facts, tuple(offsets), end + WORD)

    def message(self, device: torch.device) -> Message:
        """Room for tensors laid out like this."""
        flat = torch.empty(self.size, dtype=torch.uint8, device=device)
        set_word(flat, 0)
        return Message(self, flat, self.views(flat))

    def views(self, message: Tensor) -> list[Tensor]:
        """The tensors in a message, without a copy."""
        found = []
        for (dtype, shape, _), offset in zip(self.tensors, self.offsets, strict=True):
            size = dtype.itemsize
            for dim in shape:
                size *= dim
            found.append(message[offset : offset + size].view(dtype).view(shape))
        return found

    def value(self, tensors: Sequence[Tensor]) -> Any:
        """The nested value over `tensors`."""
        return _value(self.tree, tensors)

    def encode(self) -> bytes:
        """A description for the other side."""
        facts = [
            [str(dtype).removeprefix("torch."), shape, grad] for dtype, shape, grad in self.tensors
        ]
        return json.dumps([self.tree, facts]).encode()

    @classmethod
    def decode(cls, text: bytes) -> Layout:
        tree, facts = json.loads(text)
        tensors = tuple((getattr(torch, name), tuple(shape), grad) for name, shape, grad in facts)
        return cls.over(_tuples(tree), tensors)


@dataclass(frozen=True)
class Message:
    """A flat buffer, and the tensors in it."""

    layout: Layout
    flat: Tensor
    views: list[Tensor]

    def fill(self, tensors: Sequence[Tensor]) -> Tensor:
        """Copy `tensors` in; returns the buffer."""
        for target, tensor in zip(self.views, tensors, strict=True):
            target.copy_(tensor.detach())
        return self.flat


EMPTY = Layout(None, ())

_PLAIN = ("NoneType", "bool", "int", "float", "str")


def set_word(message: Tensor, value: int) -> None:
    """Write the last word of a message."""
    message[-WORD:].view(torch.int64)[0] = value


def get_word(message: Tensor) -> int:
    """Read the last word of a message."""
    return int(message[-WORD:].view(torch.int64).item())


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors in a nested value, in order."""
    found: list[Tensor] = []
    _tree(value, found)
    return found


def _tree(value: Any, tensors: list[Tensor]) -> Any:
    if isinstance(value, Tensor):
        tensors.append(value)
        return ("t", len(tensors) - 1)
    if type(value).__name__ in _PLAIN:
        return (type(value).__name__, value)  # 1, 1.0 and True are equal but not the same
    if isinstance(value, tuple):
        return ("(", tuple(_tree(item, tensors) for item in value))
    if isinstance(value, list):
        return ("[", tuple(_tree(item, tensors) for item in value))
    if isinstance(value, dict):
        return (
            "{",
            tuple((_tree(key, tensors), _tree(item, tensors)) for key, item in value.items()),
        )
    raise PipelineError(
        f"a {type(value).__name__} cannot pass between stages; use tensors, numbers, texts, None, "
        "and tuples, lists or dicts of them"
    )


def _value(tree: Any, tensors: Sequence[Tensor]) -> Any:
    kind, content = tree
    if kind == "t":
        return tensors[content]
    if kind in _PLAIN:
        return content
    if kind == "{":
        return {_value(key, tensors): _value(item, tensors) for key, item in content}
    items = [_value(item, tensors) for item in content]
    return tuple(items) if kind == "(" else items


def _tuples(tree: Any) -> Any:
    return tuple(_tuples(item) for item in tree) if isinstance(tree, list) else tree
