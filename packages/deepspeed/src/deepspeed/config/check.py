"""Rules between settings: the same thing said twice, and things that exclude each other."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from deepspeed.config.faults import Fault, Findings, show
from deepspeed.config.trial import optimizer_trial, schedule_trial
from deepspeed.optimizers import optimizer_fault
from ds_core.schedules import schedule_faults
from ds_core.sections import (
    ActivationCheckpointingSection,
    BF16Section,
    DataTypesSection,
    FP16Section,
    General,
    OptimizerSection,
    SchedulerSection,
    TorchAutocastSection,
)

_LEARNING_RATE_KEYS = {"WarmupLR": "warmup_max_lr", "WarmupDecayLR": "warmup_max_lr"}


def check_precision(sections: Mapping[str, object], findings: Findings) -> None:
    """One dtype for the model, and an accumulation dtype that goes with it."""
    fp16, bf16 = sections.get("fp16"), sections.get("bf16")
    in_fp16 = isinstance(fp16, FP16Section) and fp16.enabled
    in_bf16 = isinstance(bf16, BF16Section) and bf16.enabled
    if in_fp16 and in_bf16:
        findings.fault("bf16.enabled", "true contradicts fp16.enabled, which is true; keep one")
    model = "fp16" if in_fp16 else "bf16" if in_bf16 else "fp32"
    autocast = sections.get("torch_autocast")
    if (
        isinstance(autocast, TorchAutocastSection)
        and autocast.enabled
        and model not in ("fp32", autocast.dtype)
    ):
        findings.fault(
            "torch_autocast.dtype",
            f"{show(autocast.dtype)} contradicts {model}.enabled, which is true; keep one dtype",
        )
    types = sections.get("data_types")
    accumulate = types.grad_accum_dtype if isinstance(types, DataTypesSection) else None
    if accumulate not in (None, "fp32", model):
        findings.fault(
            "data_types.grad_accum_dtype",
            f"gradients of a model in {model} accumulate in 'fp32' or '{model}', "
            f"not in {show(accumulate)}"
            if model != "fp32"
            else f"gradients of a model in fp32 accumulate in 'fp32', not in {show(accumulate)}",
        )


def check_learning_rate(sections: Mapping[str, object], findings: Findings) -> None:
    """The optimizer's rate and the one a warm-up ends at are the same setting."""
    optimizer, scheduler = sections.get("optimizer"), sections.get("scheduler")
    if not isinstance(optimizer, OptimizerSection):
        return
    adam_w = optimizer.params.get("adam_w_mode")
    if optimizer.type.casefold() == "adamw" and adam_w is False:
        findings.fault(
            "optimizer.params.adam_w_mode",
            f"false contradicts optimizer.type, which is {show(optimizer.type)}; keep one",
        )
    if not isinstance(scheduler, SchedulerSection):
        return
    key = _LEARNING_RATE_KEYS.get(scheduler.type or "")
    if key is None:
        return
    peak, rate = scheduler.params.get(key), optimizer.params.get("lr")
    if _is_number(peak) and _is_number(rate) and peak != rate:
        findings.fault(
            f"scheduler.params.{key}",
            f"{show(peak)} contradicts optimizer.params.lr, which is {show(rate)}; "
            "make them equal or leave one out",
        )


def check_types(sections: Mapping[str, object], findings: Findings) -> None:
    """The optimizer and the schedule exist, and take their parameters."""
    optimizer, scheduler = sections.get("optimizer"), sections.get("scheduler")
    if isinstance(optimizer, OptimizerSection):
        fault = optimizer_fault(optimizer.type)
        if fault is not None:
            findings.fault("optimizer.type", fault)
        elif not any(known.path.startswith("optimizer.params.") for known in findings.faults):
            findings.faults += optimizer_trial(optimizer.type, optimizer.params)
    if isinstance(scheduler, SchedulerSection) and scheduler.type is not None:
        wrong = schedule_faults(scheduler.type, scheduler.params)
        findings.faults += [
            Fault(f"scheduler.{path}", text + (_of_torch(scheduler.type) if path == "type" else ""))
            for path, text in wrong
        ]
        if not wrong:
            findings.faults += schedule_trial(scheduler.type, scheduler.params)


def _of_torch(name: str) -> str:
    """A hint for those who name a schedule of torch, which JSON cannot."""
    if not inspect.isclass(getattr(torch.optim.lr_scheduler, name, None)):
        return ""
    return (
        f"; torch's own is an argument: deepspeed.initialize(lr_scheduler=lambda optimizer: "
        f"torch.optim.lr_scheduler.{name}(optimizer, ...))"
    )


def check_activation_checkpointing(sections: Mapping[str, object], findings: Findings) -> None:
    """Buffers allocated once need to know how many checkpoints go into them."""
    section = sections.get("activation_checkpointing")
    if not isinstance(section, ActivationCheckpointingSection):
        return
    if section.contiguous_memory_optimization and section.number_checkpoints is None:
        findings.fault(
            "activation_checkpointing.number_checkpoints",
            "missing, contiguous_memory_optimization needs it: a whole number >= 1",
        )


def settle_clipping(
    general: General, sections: dict[str, Any], raw: Mapping[str, Any], findings: Findings
) -> General:
    """Move `optimizer.params.max_grad_norm`, the old place, to `gradient_clipping`."""
    optimizer = sections.get("optimizer")
    if not isinstance(optimizer, OptimizerSection) or "max_grad_norm" not in optimizer.params:
        return general
    params = dict(optimizer.params)
    norm = params.pop("max_grad_norm")
    path = "optimizer.params.max_grad_norm"
    if norm == "auto":
        return general
    if not (norm is None or (_is_number(norm) and norm >= 0)):
        findings.fault(path, f"got {show(norm)}, expected a number >= 0 or null")
        return general
    given = raw.get("gradient_clipping")
    if given not in (None, "auto", norm):
        findings.fault(
            path,
            f"{show(norm)} contradicts gradient_clipping, the same setting, "
            f"which is {show(given)}; keep gradient_clipping",
        )
        return general
    sections["optimizer"] = replace(optimizer, params=params)
    findings.notices.append(f"{path}: taken as gradient_clipping {show(norm)}")
    return replace(general, gradient_clipping=norm)


def note_idle_settings(general: General, findings: Findings) -> None:
    """Tell of a setting that does nothing without another."""
    if general.gradient_predivide_factor != 1.0 and not general.prescale_gradients:
        findings.notices.append(
            "gradient_predivide_factor: does nothing while prescale_gradients is false"
        )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
