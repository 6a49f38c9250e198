"""Small state as JSON: what JSON lacks is tagged, tensors lie in a file beside it."""

from __future__ import annotations

import argparse
import datetime
import json
import math
import pathlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ds_core.checkpoint.manifest import dtype_name, dtype_of
from ds_core.errors import CheckpointError, ConfigError

TAG = "$"
"""The key that marks a tagged value: `{"$": "tuple", "v": [...]}`."""

_REMEDIES = (
    (dict, "convert it with dict(...)"),
    (tuple, "convert it with tuple(...), or keep its _asdict()"),
    (list, "convert it with list(...)"),
    (Tensor, "save tensor.detach(), dense and not quantized"),
    (np.ndarray, "convert it with .tolist()"),
    (torch.nn.Module, "keep its state_dict()"),
    (torch.optim.Optimizer, "keep its state_dict()"),
)


class Encoder:
    """Turns one Python value into JSON values, and collects its tensors in `tensors`."""

    def __init__(self, *, copy: bool = False) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._copy = copy
        self._open: set[int] = set()

    def encode(self, value: Any, path: str) -> Any:
        """The JSON form of `value`; raises `ConfigError` naming the path of what has none."""
        kind = type(value)
        if value is None or kind in (bool, str, int):
            return value
        if kind is float:
            return value if math.isfinite(value) else {TAG: "float", "v": repr(value)}
        if kind in (list, tuple, dict, OrderedDict, set, frozenset, argparse.Namespace):
            if id(value) in self._open:
                raise ConfigError(f"{path} contains itself: it cannot be saved")
            self._open.add(id(value))
            encoded = self._container(value, kind, path)
            self._open.discard(id(value))
            return encoded
        if kind in (Tensor, torch.nn.Parameter, np.ndarray):
            return self._array(value, path)
        return self._leaf(value, kind, path)

    def _container(self, value: Any, kind: type, path: str) -> Any:
        if kind is argparse.Namespace:
            return {TAG: "namespace", "v": self._items(vars(value), path, ".{}")}
        if kind is dict and TAG not in value and all(type(key) is str for key in value):
            return {key: self.encode(item, f"{path}[{key!r}]") for key, item in value.items()}
        if kind in (dict, OrderedDict):
            name = "dict" if kind is dict else "ordered_dict"
            return {TAG: name, "v": self._items(value, path, "[{!r}]")}
        items = [self.encode(item, f"{path}[{i}]") for i, item in enumerate(value)]
        return items if kind is list else {TAG: kind.__name__, "v": items}

    def _items(self, value: dict[Any, Any], path: str, form: str) -> list[list[Any]]:
        return [
            [self.encode(key, f"a key of {path}"), self.encode(item, path + form.format(key))]
            for key, item in value.items()
        ]

    def _array(self, value: Any, path: str) -> Any:
        numpy = isinstance(value, np.ndarray)
        try:
            if numpy:
                tensor = torch.from_numpy(np.require(value, requirements=["C", "W"]))
            else:
                tensor = value.detach()
            if tensor.layout != torch.strided or tensor.is_quantized:
                raise TypeError(f"layout {tensor.layout}")
            tensor = tensor.resolve_conj().resolve_neg().cpu().contiguous()
        except (TypeError, ValueError):
            self._refuse(value, path)
        if self._copy:
            tensor = tensor.clone()
        key = f"t{len(self.tensors)}"
        self.tensors[key] = tensor
        facts = {"key": key, "dtype": dtype_name(tensor.dtype), "shape": list(value.shape)}
        return {TAG: "array" if numpy else "tensor", "v": facts}

    def _leaf(self, value: Any, kind: type, path: str) -> Any:
        if isinstance(value, np.generic):
            if value.dtype.kind not in "biuf" or value.dtype.itemsize > 8:
                self._refuse(value, path)
            return {TAG: "scalar", "v": [value.dtype.str, self.encode(value.item(), path)]}
        if isinstance(value, pathlib.PurePath):
            return {TAG: "path", "v": str(value)}
        texts: dict[type, Callable[[Any], Any]] = {
            complex: lambda v: [self.encode(v.real, path), self.encode(v.imag, path)],
            bytes: bytes.hex,
            bytearray: bytearray.hex,
            range: lambda v: [v.start, v.stop, v.step],
            torch.dtype: dtype_name,
            torch.Size: list,
            torch.device: str,
            datetime.datetime: datetime.datetime.isoformat,
            datetime.date: datetime.date.isoformat,
            datetime.timedelta: lambda v: [v.days, v.seconds, v.microseconds],
        }
        if kind not in texts:
            self._refuse(value, path)
        return {TAG: kind.__name__.lower(), "v": texts[kind](value)}

    def _refuse(self, value: Any, path: str) -> Any:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        remedy = "save plain values (numbers, text, lists, dicts, tensors) instead"
        if hasattr(value, "value") and hasattr(type(value), "__members__"):
            remedy = "keep its .value"
        elif hasattr(type(value), "__dataclass_fields__"):
            remedy = "keep dataclasses.asdict(...) of it"
        else:
            remedy = next((text for base, text in _REMEDIES if isinstance(value, base)), remedy)
        raise ConfigError(f"{path} is of type {kind}, which a checkpoint does not hold: {remedy}")


def decode(value: Any, tensor: Callable[[str, torch.dtype, tuple[int, ...]], Tensor]) -> Any:
    """The Python value behind its JSON form; `tensor(key, dtype, shape)` fetches a tensor."""
    if isinstance(value, list):
        return [decode(item, tensor) for item in value]
    if not isinstance(value, dict):
        return value
    if TAG not in value:
        return {key: decode(item, tensor) for key, item in value.items()}
    kind, content = value[TAG], value["v"]
    if kind in ("tensor", "array"):
        found = tensor(content["key"], dtype_of(content["dtype"]), tuple(content["shape"]))
        return found if kind == "tensor" else found.numpy()
    if kind in _PLAIN:
        return _PLAIN[kind](content)
    if kind in _NESTED:
        return _NESTED[kind](decode(content, tensor))
    raise CheckpointError(f"unknown value of kind {kind!r}: written by a newer ds-core?")


def _scalar(content: list[Any]) -> Any:
    name, item = content
    return np.dtype(name).type(item)


_NESTED: dict[str, Callable[[Any], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "ordered_dict": OrderedDict,
    "namespace": lambda items: argparse.Namespace(**dict(items)),
    "complex": lambda parts: complex(*parts),
    "scalar": _scalar,
}
_PLAIN: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "range": lambda content: range(*content),
    "dtype": dtype_of,
    "size": torch.Size,
    "device": torch.device,
    "path": pathlib.Path,
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "timedelta": lambda content: datetime.timedelta(*content),
}


def to_bytes(value: Any) -> bytes:
    """JSON text of an encoded value; keys keep their order."""
    return json.dumps(value, allow_nan=False).encode()
