"""Optimizers by the `type` that stands in JSON."""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Mapping
from typing import Any

import torch

from deepspeed import registry
from ds_core.errors import ConfigError
from ds_core.optimizers import MakeOptimizer

logger = logging.getLogger(__name__)

_ONE_BIT = ("onebitadam", "onebitlamb", "zerooneadam")
_ONE_BIT_WHY = (
    "1-bit optimizers are not part of this release; use Adam or Lamb, and "
    "communication_data_type to halve messages"
)

NO_LBFGS = (
    "LBFGS evaluates the loss several times a step, which an engine cannot; use another "
    "optimizer, or LBFGS with plain torch"
)


def make_optimizer_factory(name: str, options: Mapping[str, Any]) -> MakeOptimizer:
    """A factory of the optimizer called `name` in any case.

    Optimizers that installed packages publish come first, then every class of `torch.optim`.

    Raises:
        ConfigError: for a name nobody offers, or options the optimizer does not take.
    """
    key = name.lower()
    published = registry.find("optimizers", key)
    if published is not None:
        return lambda groups: (
            _of_torch(key, name, options)(groups)
            if _has_float64(groups)
            else published(groups, dict(options))
        )
    return _of_torch(key, name, options)


def _has_float64(groups: list[dict[str, Any]]) -> bool:
    """The published optimizers step fp32 and 16-bit parameters; torch's take any."""
    return any(param.dtype == torch.float64 for group in groups for param in group["params"])


def _of_torch(key: str, name: str, options: Mapping[str, Any]) -> MakeOptimizer:
    """A factory of the class of `torch.optim`."""
    if key == "adam" and options.get("adam_w_mode", True):
        key = "adamw"  # the reference's "Adam" decouples weight decay unless told not to
    cls = _torch_class(key, name)
    cleaned = {k: v for k, v in options.items() if k not in ("torch_adam", "adam_w_mode")}
    if cleaned.pop("bias_correction", True) is False:
        raise ConfigError(
            f"optimizer.params.bias_correction: false is not something torch.optim.{cls.__name__} "
            "can do; pip install ds-kernels (from a clone: packages/ds-kernels)"
        )
    if cls is torch.optim.AdamW and not options.get("torch_adam"):
        cleaned.setdefault("weight_decay", 0.0)  # as in the reference; torch's own is 0.01
    _check_options(cls, cleaned)
    cleaned = {k: tuple(v) if isinstance(v, list) else v for k, v in cleaned.items()}
    return lambda groups: cls(groups, **cleaned)


def optimizer_fault(name: str) -> str | None:
    """What is wrong with an optimizer's name, or None."""
    key = name.lower()
    if key == "lbfgs":
        return NO_LBFGS
    known = key in registry.offered("optimizers") or key in _torch_classes()
    return None if known else _unknown(name)


def _unknown(name: str) -> str:
    if name.lower() in _ONE_BIT:
        return f"{name!r} is not known: {_ONE_BIT_WHY}"
    known = sorted({*registry.offered("optimizers"), *_torch_classes()})
    near = difflib.get_close_matches(name.lower(), known, n=1)
    meant = f", did you mean {near[0]!r}?" if near else f"; installed: {', '.join(known)}"
    return f"{name!r} is not known{meant}"


def _torch_classes() -> dict[str, type[torch.optim.Optimizer]]:
    return {
        attribute.lower(): cls
        for attribute, cls in vars(torch.optim).items()
        if inspect.isclass(cls)
        and issubclass(cls, torch.optim.Optimizer)
        and cls is not torch.optim.Optimizer
    }


def _torch_class(key: str, name: str) -> type[torch.optim.Optimizer]:
    classes = _torch_classes()
    if key not in classes:
        raise ConfigError(f"optimizer.type: {_unknown(name)}")
    return classes[key]


def _check_options(cls: type[torch.optim.Optimizer], options: Mapping[str, Any]) -> None:
    known = [p for p in inspect.signature(cls).parameters if p not in ("self", "params")]
    for option in options:
        if option not in known:
            raise ConfigError(
                f"optimizer.params.{option}: torch.optim.{cls.__name__} has no such option; it "
                f"takes {', '.join(known)}"
            )
