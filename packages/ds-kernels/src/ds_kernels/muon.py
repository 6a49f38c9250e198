"""Muon for the matrices of a model with Adam for everything else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ds_kernels.errors import BackendError, OptionError
from ds_kernels.fused import FusedAdam

MUON_OPTIONS = (
    "lr",
    "muon_lr",
    "adam_lr",
    "momentum",
    "nesterov",
    "weight_decay",
    "betas",
    "eps",
    "ns_steps",
    "adjust_lr_fn",
)
_TIED_TO_TOKENS = ("embed", "lm_head")
_ADAM_KEYS = ("betas", "eps")
_MUON_KEYS = ("momentum", "nesterov", "ns_steps", "adjust_lr_fn")


class MuonWithAdam(torch.optim.Optimizer):
    """torch's Muon for two-dimensional parameters, Adam (decoupled decay) for the others.

    A parameter or its group may say `use_muon`; otherwise matrices use Muon unless their name (in
    named parameters) contains `embed` or `lm_head`. A group whose parameters differ in this is
    split in two, neighbours in `param_groups`, each with its own `lr` and a `use_muon` flag.

    Args:
        params: tensors, named tensors or groups.
        lr: rate of both, unless `muon_lr` or `adam_lr` says otherwise.
        muon_lr, adam_lr: rates; without any, 0.02 and 3e-4.
        momentum, nesterov, ns_steps, adjust_lr_fn: as in `torch.optim.Muon`.
        weight_decay: decoupled decay of both.
        betas, eps: of Adam.

    Raises:
        BackendError: this torch has no Muon.
    """

    def __init__(
        self, params: Iterable[Any], lr: float | None = None, **options: Any
    ) -> None:  # options: MUON_OPTIONS, passed on to the two optimizers
        unknown = [name for name in options if name not in MUON_OPTIONS]
        if unknown:
            raise OptionError(f"Muon has no option {', '.join(unknown)}")
        if not hasattr(torch.optim, "Muon"):
            raise BackendError(
                f"torch {torch.__version__} has no Muon; it needs torch 2.9 or newer"
            )
        rates = {
            True: options.pop("muon_lr", lr if lr is not None else 0.02),
            False: options.pop("adam_lr", lr if lr is not None else 3e-4),
        }
        decay = options.pop("weight_decay", 0.0)
        groups = []
        for group in _groups(params):
            own = {key: value for key, value in group.items() if key not in ("params", "use_muon")}
            for use_muon, members in _split(group).items():
                wanted = {"lr": rates[use_muon], "weight_decay": decay} | own
                wanted |= {"params": members, "use_muon": use_muon}
                keys = _MUON_KEYS if use_muon else _ADAM_KEYS
                groups.append(wanted | {k: v for k, v in options.items() if k in keys})
        matrices = [group for group in groups if group["use_muon"]]
        others = [group for group in groups if not group["use_muon"]]
        self._muon = torch.optim.Muon(matrices) if matrices else None
        self._adam = FusedAdam(others) if others else None
        filled = iter(self._muon.param_groups if self._muon else [])
        rest = iter(self._adam.param_groups if self._adam else [])
        super().__init__([next(filled) if g["use_muon"] else next(rest) for g in groups], {})
        self._share()

    def _share(self) -> None:
        """Both optimizers work on this object's groups and state."""
        for part, use_muon in ((self._muon, True), (self._adam, False)):
            if part is not None:
                part.param_groups = [g for g in self.param_groups if g["use_muon"] is use_muon]
                part.state = self.state

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._share()
        for part in (self._muon, self._adam):
            if part is not None:
                part.step()
        return loss


def _groups(params: Iterable[Any]) -> list[dict[str, Any]]:
    listed = list(params)
    if listed and isinstance(listed[0], dict):
        return [{**group, "params": _tensors(group["params"])} for group in listed]
    return [{"params": listed}]


def _tensors(params: Any) -> list[Any]:
    return [params] if isinstance(params, Tensor) else list(params)


def _split(group: dict[str, Any]) -> dict[bool, list[Any]]:
    parts: dict[bool, list[Any]] = {}
    for item in group["params"]:
        name, param = item if isinstance(item, tuple) else ("", item)
        wanted = getattr(param, "use_muon", group.get("use_muon"))
        if wanted is None:
            wanted = not any(word in name for word in _TIED_TO_TOKENS)
        parts.setdefault(bool(wanted) and param.dim() == 2, []).append(item)
    return parts
