"""Modules that `torch.compile` has wrapped: without the wrapper, or running eagerly."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from torch import nn

logger = logging.getLogger(__name__)


def uncompiled(module: nn.Module) -> nn.Module:
    """`module`, or what it wraps; its names have no prefix."""
    inner = module.__dict__.get("_modules", {}).get("_orig_mod")
    return module if inner is None else inner


def run_eagerly(module: nn.Module) -> None:
    """Let every compiled module within `module` run as it was written, and say which."""
    found = []
    for name, child in module.named_modules():
        inner = uncompiled(child)
        facts: dict[str, Any] = child.__dict__
        if inner is not child:
            facts["forward"] = inner.__call__
        elif child._compiled_call_impl is not None:
            child._compiled_call_impl = None
        else:
            continue
        found.append(name or "the model")
    if found:
        say_it_stays_eager(found)


def say_it_stays_eager(names: Sequence[str]) -> None:
    """Log that, and why, these modules are not compiled."""
    logger.warning(
        "ZeRO stage 3 gathers parameters around every module, which torch.compile cannot trace: "
        "%s runs eagerly; stages 0, 1 and 2 run compiled",
        ", ".join(names),
    )
