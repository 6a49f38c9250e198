"""Optimizers by JSON type: `factory(params_or_groups, options)`, options as in `optimizer.params`.

Every option acts or is refused by name. The defaults are those that the JSON of the `deepspeed`
distribution has, which differ here and there from torch's.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ds_kernels.adagrad import CPUAdagrad
from ds_kernels.errors import OptionError
from ds_kernels.fused import FusedAdam, FusedLamb, FusedLion
from ds_kernels.muon import MUON_OPTIONS, MuonWithAdam
from ds_kernels.optimizer import refuse_amsgrad
from ds_kernels.sgd import CPUSGD

logger = logging.getLogger(__name__)

Options = Mapping[str, Any]
Params = Iterable[Any]

_TORCH_ADAM = ("amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused")
_ADAM = ("lr", "betas", "eps", "weight_decay", "bias_correction", "maximize")
# Accepted since published configs have them; each is explained where it is handled.
_ADAM_SWITCHES = ("torch_adam", "adam_w_mode", "adamw_mode", "amsgrad", "max_grad_norm")
_LAMB = ("lr", "betas", "eps", "weight_decay", "bias_correction", "min_coeff", "max_coeff")


def adam(params: Params, options: Options) -> torch.optim.Optimizer:
    """Type `Adam`: decoupled decay unless `adam_w_mode` is false; torch's own with `torch_adam`."""
    return _adam("Adam", params, options)


def adamw(params: Params, options: Options) -> torch.optim.Optimizer:
    """Type `AdamW`: as `Adam`, where `adam_w_mode: false` would contradict the name."""
    if not options.get("adam_w_mode", options.get("adamw_mode", True)):
        raise OptionError("optimizer type AdamW with adam_w_mode false: write type Adam instead")
    return _adam("AdamW", params, options)


def _adam(kind: str, params: Params, options: Options) -> torch.optim.Optimizer:
    if options.get("torch_adam", False):
        return _torch_adam(kind, params, options)
    checked(kind, options, (*_ADAM, *_ADAM_SWITCHES))
    refuse_amsgrad(options.get("amsgrad", False))
    _explain_max_grad_norm(kind, options)
    decoupled = options.get("adam_w_mode", options.get("adamw_mode", True))
    return FusedAdam(params, adamw_mode=bool(decoupled), **_only(_ADAM, options))


def _torch_adam(kind: str, params: Params, options: Options) -> torch.optim.Optimizer:
    checked(kind, options, (*_ADAM, *_ADAM_SWITCHES, *_TORCH_ADAM))
    if not options.get("bias_correction", True):
        raise OptionError(f"optimizer type {kind}: torch_adam cannot leave out bias_correction")
    _explain_max_grad_norm(kind, options)
    decoupled = options.get("adam_w_mode", options.get("adamw_mode", True))
    make = torch.optim.AdamW if decoupled else torch.optim.Adam
    passed = _only((*_ADAM, *_TORCH_ADAM), options)
    passed.pop("bias_correction", None)
    return make(params, **passed)


def lamb(params: Params, options: Options) -> torch.optim.Optimizer:
    """Type `Lamb`."""
    refused = ("amsgrad", "eps_inside_sqrt")
    checked("Lamb", options, (*_LAMB, *refused, "max_grad_norm", "maximize"))
    for name in refused:
        if options.get(name, False):
            raise OptionError(f"optimizer type Lamb: {name} is not offered; leave it false")
    _explain_max_grad_norm("Lamb", options)
    return FusedLamb(params, **_only((*_LAMB, "maximize"), options))


def lion(params: Params, options: Options) -> torch.optim.Optimizer:
    """Type `Lion`, with the defaults lr 1e-3 and betas (0.9, 0.999)."""
    checked("Lion", options, ("lr", "betas", "weight_decay", "maximize"))
    defaults: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999)}
    return FusedLion(params, **(defaults | _only(options, options)))


def adagrad(params: Params, options: Options) -> torch.optim.Optimizer:
    """Type `Adagrad`."""
    known = ("lr", "lr_decay", "eps", "weight_decay", "initial_accumulator_value", "maximize")
    checked("Adagrad", options, (*known, "amsgrad"))
    refuse_amsgrad(options.get("amsgrad", False))
    return CPUAdagrad(params, **_only(known, options))


def sgd(params: Params, options: Options) -> torch.optim.Optimizer:
    """Type `SGD`."""
    known = ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")
    checked("SGD", options, known)
    return CPUSGD(params, **_only(known, options))


def muon(params: Params, options: Options) -> torch.optim.Optimizer:
    """Type `Muon`: torch's Muon for matrices, Adam for the rest."""
    checked("Muon", options, MUON_OPTIONS)
    return MuonWithAdam(params, **_only(MUON_OPTIONS, options))


def checked(kind: str, options: Options, known: Iterable[str]) -> None:
    """Raise OptionError for every option of `kind` that is not among `known`."""
    known = list(known)
    unknown = []
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            unknown.append(f"'{name}'" + (f" (did you mean '{near[0]}'?)" if near else ""))
    if unknown:
        raise OptionError(
            f"optimizer type {kind} has no option {', '.join(unknown)}; "
            f"it has {', '.join(sorted(known))}"
        )


def _only(names: Iterable[str], options: Options) -> dict[str, Any]:
    chosen = {name: options[name] for name in names if name in options}
    if "betas" in chosen:
        chosen["betas"] = tuple(chosen["betas"])
    return chosen


def _explain_max_grad_norm(kind: str, options: Options) -> None:
    if options.get("max_grad_norm", 0):
        logger.warning(
            "optimizer type %s: max_grad_norm has no effect; the top-level key "
            "gradient_clipping is what clips gradients",
            kind,
        )
