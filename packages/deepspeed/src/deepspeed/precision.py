"""From the precision sections of JSON to what the engine uses."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from deepspeed.config import Config
from ds_core.contracts import Hook
from ds_core.engine import torch_autocast
from ds_core.errors import ConfigError
from ds_core.precision import DynamicLossScaler, LossScaler, PrecisionSettings, StaticLossScaler
from ds_core.precision.cast import InputCast

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def compute_dtype(config: Config) -> torch.dtype:
    """The format of the module's weights; sections that are `enabled` choose it."""
    if config.section("fp16").enabled:
        return torch.float16
    if config.section("bf16").enabled:
        return torch.bfloat16
    return torch.float32


def precision_settings(config: Config) -> PrecisionSettings:
    """Formats of weights, masters, gradients and messages, and the loss scaler.

    Raises:
        ConfigError: for combinations that nothing here implements.
    """
    fp16, bf16 = config.section("fp16"), config.section("bf16")
    dtype = compute_dtype(config)
    pure = (fp16.enabled and fp16.fp16_master_weights_and_grads) or (
        bf16.enabled and bf16.bf16_master_weights_and_grads
    )
    if bf16.enabled and bf16.bf16_optimizer_states and not pure:
        raise ConfigError(
            "bf16.bf16_optimizer_states: true needs bf16.bf16_master_weights_and_grads: true here; "
            "fp32 masters have fp32 moments"
        )
    accumulate = config.section("data_types").grad_accum_dtype
    wire = config.general.communication_data_type
    chosen = DTYPES[accumulate] if accumulate else (dtype if pure else None)
    if dtype == torch.float32 and chosen not in (None, torch.float32):
        raise ConfigError(
            f"data_types.grad_accum_dtype: {accumulate} does not go with fp32 weights; enable "
            f"{accumulate} for the weights too, or leave it out"
        )
    return PrecisionSettings(
        compute_dtype=None if dtype == torch.float32 else dtype,
        master_weights=not pure,
        accumulate_dtype=chosen,
        communication_dtype=DTYPES[wire] if wire else None,
        make_scaler=_scaler_factory(config),
    )


def autocast_context(config: Config, device_type: str) -> Callable[[], AbstractContextManager[Any]]:
    """What forward runs in: `torch.autocast` if the section asks for it."""
    section = config.section("torch_autocast")
    return torch_autocast(device_type, DTYPES[section.dtype]) if section.enabled else nullcontext


def input_casts(config: Config) -> list[Hook]:
    """The hook that casts floating-point inputs, if `fp16.auto_cast` is set."""
    fp16 = config.section("fp16")
    return [InputCast(torch.float16)] if fp16.enabled and fp16.auto_cast else []


def _scaler_factory(config: Config) -> Callable[[], LossScaler]:
    fp16, autocast = config.section("fp16"), config.section("torch_autocast")
    if not fp16.enabled and not (autocast.enabled and autocast.dtype == "fp16"):
        return StaticLossScaler
    if fp16.loss_scale:
        return lambda: StaticLossScaler(fp16.loss_scale)
    initial = 2.0**fp16.initial_scale_power
    return lambda: DynamicLossScaler(
        initial=initial,
        window=fp16.loss_scale_window,
        hysteresis=fp16.hysteresis,
        consecutive_hysteresis=fp16.consecutive_hysteresis,
        minimum=min(fp16.min_loss_scale or 2.0**-24, initial),
    )
