"""Muon for the matrices of a model with Adam for everything else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ds_kernels.errors import BackendError, OptionError
from ds_kernels.fused import FusedAdam
from ds_kernels.optimizer import check_saved_shapes, keep_moments

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
        self._wanted: dict[bool, dict[str, Any]] = {  # what a group says goes before
            use_muon: {"lr": rates[use_muon], "weight_decay": decay}
            | {key: value for key, value in options.items() if key in keys}
            for use_muon, keys in ((True, _MUON_KEYS), (False, _ADAM_KEYS))
        }
        self._parts: dict[bool, torch.optim.Optimizer] = {}
        super().__init__(_groups(params), {})  # calls add_param_group
        if not self.param_groups:
            raise OptionError("Muon got an empty parameter list")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with options of their own if they have any; two groups if need be."""
        group = {**param_group, "params": _tensors(param_group["params"])}
        for use_muon, members in _split(group).items():
            wanted = self._wanted[use_muon] | group | {"params": members, "use_muon": use_muon}
            part = torch.optim.Muon([wanted]) if use_muon else FusedAdam([wanted])
            super().add_param_group(part.param_groups[0])
            self._parts.setdefault(use_muon, part)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this optimizer over as many groups of the same kinds."""
        kinds = [group["use_muon"] for group in self.param_groups]
        saved = [group.get("use_muon") for group in state_dict["param_groups"]]
        if saved != kinds:
            raise OptionError(
                f"the groups of the state dict have use_muon {saved}, those of this optimizer "
                f"{kinds}: give it parameters in the same groups"
            )
        check_saved_shapes(self, state_dict, ("momentum_buffer", *FusedAdam.rule.state_names))
        super().load_state_dict(state_dict)
        keep_moments(self, state_dict, FusedAdam.rule.state_names, torch.float32)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_wanted": self._wanted, "_parts": self._parts}

    def _share(self) -> None:
        """Both optimizers work on this object's groups and state."""
        for use_muon, part in self._parts.items():
            part.param_groups = [g for g in self.param_groups if g["use_muon"] is use_muon]
            part.state = self.state

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._share()
        for part in self._parts.values():
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
