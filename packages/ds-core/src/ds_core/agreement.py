"""Finds out at the start whether ranks that must agree do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from torch import nn

from ds_core.comm import Communicator
from ds_core.errors import RankMismatchError
from ds_core.naming import clean_name


def model_facts(module: nn.Module) -> dict[str, str]:
    """Shape, dtype and training of each parameter, by name."""
    return {
        clean_name(name): f"{tuple(param.shape)} {param.dtype}"
        + ("" if param.requires_grad else " frozen")
        for name, param in module.named_parameters()
    }


def require_agreement(comm: Communicator, what: str, facts: Mapping[str, Any]) -> None:
    """Raise on every rank if `facts` differ between ranks; all ranks call this together.

    Only a digest travels unless there is a difference.

    Raises:
        RankMismatchError: naming the first key that differs and what each rank has for it.
    """
    if comm.world_size == 1:
        return
    plain = {key: str(value) for key, value in facts.items()}
    digest = hashlib.sha256(json.dumps(list(plain.items())).encode()).hexdigest()
    if len(set(comm.all_gather_object(digest, label=what))) == 1:
        return
    everyone: list[dict[str, str]] = comm.all_gather_object(plain, label=what)
    raise RankMismatchError(_difference(what, everyone))


def _difference(what: str, everyone: list[dict[str, str]]) -> str:
    keys = dict.fromkeys(key for facts in everyone for key in facts)
    for key in keys:
        held = [facts.get(key, "(none)") for facts in everyone]
        if len(set(held)) > 1:
            lines = "\n".join(f"  rank {rank}: {value}" for rank, value in enumerate(held))
            return f"ranks disagree on {what}: '{key}' is\n{lines}"
    lines = "\n".join(f"  rank {r}: {', '.join(facts)}" for r, facts in enumerate(everyone))
    return f"ranks disagree on {what}: the same entries in another order\n{lines}"
