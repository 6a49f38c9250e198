"""The one-line profile of a model: flops, multiply-accumulates, parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ds_profiler.errors import UsageError
from ds_profiler.modules import require_module
from ds_profiler.profiling import profile
from ds_profiler.report.text import text_report
from ds_profiler.report.write import write_text
from ds_profiler.units import macs_to_string, number_to_string, params_to_string


def get_model_profile(
    model: nn.Module,
    input_shape: Sequence[int] | None = None,
    args: Sequence[Any] | None = (),
    kwargs: Mapping[str, Any] | None = None,
    print_profile: bool = True,
    detailed: bool = True,
    module_depth: int = -1,
    top_modules: int = 1,
    warm_up: int = 1,
    as_string: bool = True,
    output_file: str | Path | None = None,
    ignore_modules: Sequence[type[nn.Module]] | None = None,
    mode: str = "forward",
) -> tuple[Any, Any, Any]:
    """Profile a forward pass in evaluation mode; returns `(flops, macs, params)`.

    The model is given back as it was, training mode included.

    Args:
        model: the model.
        input_shape: shape of one tensor to make, its only positional argument.
        args: or its positional arguments.
        kwargs: its keyword arguments.
        print_profile: write the text report.
        detailed: with the tree of all modules.
        module_depth: depth to aggregate at; -1 means every depth.
        top_modules: kinds of modules to list at a depth.
        warm_up: passes before the timed one.
        as_string: return `"1.23 G"` instead of numbers.
        output_file: where the report goes; None is standard output.
        ignore_modules: types of modules to leave out.
        mode: `"forward"`, or `"generate"` to profile `model.generate(...)`.
    """
    require_module(model)
    result = profile(
        model,
        *(_make_input(model, input_shape) if input_shape is not None else tuple(args or ())),
        kwargs=kwargs,
        training=False,
        warm_up=warm_up,
        ignore=tuple(ignore_modules or ()),
        call=_entry(model, mode),
    )
    if print_profile:
        report = text_report(
            result, module_depth=module_depth, top_modules=top_modules, detailed=detailed
        )
        write_text(report, output_file)
    if not as_string:
        return result.flops, result.macs, result.params
    return (
        number_to_string(result.flops),
        macs_to_string(result.macs),
        params_to_string(result.params),
    )


def _entry(model: nn.Module, mode: str) -> Any:
    if mode == "forward":
        return model
    if mode == "generate":
        return model.generate
    raise UsageError(f"mode={mode!r}: say 'forward' or 'generate'")


def _make_input(model: nn.Module, shape: Sequence[int]) -> tuple[torch.Tensor]:
    if not shape or any(not isinstance(size, int) or size < 1 for size in shape):
        raise UsageError(f"input_shape={tuple(shape)!r}: give one positive size a dimension")
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    return (torch.ones(tuple(shape), dtype=like.dtype, device=like.device),)
