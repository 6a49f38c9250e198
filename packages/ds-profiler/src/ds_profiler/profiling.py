"""Profiling a model in one call."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ds_profiler.assemble import Measured, assemble, outside
from ds_profiler.count import FlopCounter
from ds_profiler.depth import depth_of, room_for
from ds_profiler.errors import UsageError
from ds_profiler.modules import buffers_of, parameters_of, require_module
from ds_profiler.passes import Run, Times, count, time_modules
from ds_profiler.result import Profile
from ds_profiler.rules import RuleBook, default_rules
from ds_profiler.timing import tensors_in
from ds_profiler.untouched import untouched

logger = logging.getLogger(__name__)


def profile(
    model: nn.Module,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    backward: bool = False,
    loss: Callable[[Any], Tensor] | None = None,
    training: bool | None = None,
    compute: bool | None = None,
    warm_up: int = 1,
    ignore: Sequence[type[nn.Module]] = (),
    rules: RuleBook | None = None,
    peak_flops: float | None = None,
    call: Callable[..., Any] | None = None,
    **named: Any,  # arguments of the model, whatever they are
) -> Profile:
    """Count and time one pass of `model(*args, **kwargs)`.

    The pass runs under the counter once and, apart from it, with a time mark around each module
    once, after `warm_up` more. The model is given back exactly as it was.

    Args:
        model: any module; compiled, checkpointed, wrapped and partly frozen ones are welcome.
        *args: its positional arguments.
        kwargs: its keyword arguments, by any name.
        backward: run and count the backward pass too.
        loss: makes the scalar that the backward pass starts from; by default all outputs summed.
        training: training or evaluation mode meanwhile; None leaves it as it is.
        compute: False counts with fake tensors: nothing is computed or allocated, and no time is
            measured. None computes unless the model lies on the meta device.
        warm_up: passes before the timed one.
        ignore: types of modules to leave out, with what is in them.
        rules: what operators cost; extend `default_rules()` for operators of your own.
        peak_flops: what the device can do a second, for `Profile.utilisation`.
        call: what to call instead of the model (a method of it, such as `model.generate`).
        **named: keyword arguments that its forward names and no option here does; others go in
            `kwargs`, so that no option with a slip of the pen in it is taken for one.
    """
    require_module(model)
    with room_for(depth_of(model)):
        keywords = _merged(call or model.forward, named, dict(kwargs or {}))
        run = Run(call or model, args, keywords, backward, loss)
        device = _device_of(model, run)
        if compute is None:
            compute = device.type != "meta"
        times = Times(0.0, 0.0, {}, {})
        with untouched(model, training=training):
            counter, saved = _counted(model, run, rules, fake=_needs_fake(compute, device))
            if compute:
                times = time_modules(model, run, device, warm_up=warm_up)
        tree = assemble(
            counter.index,
            counter.tally,
            Measured(times.forward_by_module, times.backward_by_module, saved),
            ignored=tuple(ignore),
        )
        return Profile(
            root=tree,
            uncounted=dict(counter.tally.unknown),
            outside=outside(counter.tally),
            forward_seconds=times.forward,
            backward_seconds=times.backward,
            device=str(device) if compute or device.type == "meta" else "fake",
            peak_flops=peak_flops,
            samples=_samples(run),
        )


def _merged(
    call: Callable[..., Any], named: dict[str, Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The model's keyword arguments; refuses what may be a slip in the name of an option."""
    if twice := [name for name in named if name in kwargs]:
        raise UsageError(f"{', '.join(twice)}: given in kwargs too; give it once")
    known = _keywords(call) if named else []
    if wrong := [name for name in named if name not in known]:
        options = ", ".join(_keywords(profile)[1:])
        raise UsageError(
            f"{', '.join(wrong)}: no option of profile ({options}), and the model's forward names "
            "no such argument; to pass it on all the same, say kwargs="
            f"{{{', '.join(f'{name!r}: ...' for name in wrong)}}}"
        )
    return {**kwargs, **named}


def _keywords(call: Callable[..., Any]) -> list[str]:
    """What `call` names as an argument; nothing where it does not tell."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):  # builtins, scripted functions
        return []
    takes = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [parameter.name for parameter in parameters if parameter.kind in takes]


def _counted(
    model: nn.Module, run: Run, rules: RuleBook | None, *, fake: bool
) -> tuple[FlopCounter, Mapping[int, int]]:
    try:
        return count(model, run, rules or default_rules(), fake=fake, memory=True)
    except RuntimeError as error:
        if "support saved tensor hooks" not in str(error):
            raise
    logger.warning("activations are not measured: torch.func in the model does not allow it")
    return count(model, run, rules or default_rules(), fake=fake, memory=False)


def _needs_fake(compute: bool, device: torch.device) -> bool:
    return not compute and device.type != "meta"


def _device_of(model: nn.Module, run: Run) -> torch.device:
    for tensor in (*parameters_of(model), *buffers_of(model), *tensors_in((run.args, run.kwargs))):
        return tensor.device
    return torch.device("cpu")


def _samples(run: Run) -> int | None:
    """The leading dimension of the first tensor argument."""
    for tensor in tensors_in((run.args, run.kwargs)):
        return int(tensor.shape[0]) if tensor.dim() else None
    return None
