"""Optimizers by the `type` that stands in JSON."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from typing import Any

import torch

from deepspeed import registry
from ds_core.errors import ConfigError
from ds_core.optimizers import MakeOptimizer

logger = logging.getLogger(__name__)


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
            "can do; pip install ds-kernels"
        )
    if cls is torch.optim.AdamW and not options.get("torch_adam"):
        cleaned.setdefault("weight_decay", 0.0)  # as in the reference; torch's own is 0.01
    _check_options(cls, cleaned)
    cleaned = {k: tuple(v) if isinstance(v, list) else v for k, v in cleaned.items()}
    return lambda groups: cls(groups, **cleaned)


def _torch_class(key: str, name: str) -> type[torch.optim.Optimizer]:
    classes = {
        attribute.lower(): cls
        for attribute, cls in vars(torch.optim).items()
        if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer)
    }
    if key not in classes:
        known = sorted({*registry.offered("optimizers"), *classes} - {"optimizer"})
        raise ConfigError(f"optimizer.type: {name!r} is not known; installed: {', '.join(known)}")
    return classes[key]


def _check_options(cls: type[torch.optim.Optimizer], options: Mapping[str, Any]) -> None:
    known = [p for p in inspect.signature(cls).parameters if p not in ("self", "params")]
    for option in options:
        if option not in known:
            raise ConfigError(
                f"optimizer.params.{option}: torch.optim.{cls.__name__} has no such option; it "
                f"takes {', '.join(known)}"
            )
