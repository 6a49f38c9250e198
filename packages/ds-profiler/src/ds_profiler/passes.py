"""Running a model once to count it or to time it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ds_profiler.clock import clock_for
from ds_profiler.count import FlopCounter
from ds_profiler.errors import UsageError
from ds_profiler.modules import parameters_of
from ds_profiler.rules import RuleBook
from ds_profiler.saved import SavedBytes
from ds_profiler.timing import ModuleTimer, tensors_in
from ds_profiler.watch import OUTSIDE, ModuleIndex


@dataclass(frozen=True)
class Run:
    """How to run the model once.

    Attributes:
        call: the function to call (the model, or one of its methods).
        args, kwargs: its arguments.
        backward: whether to run the backward pass too.
        loss: makes a scalar of the output; None sums all outputs that can be differentiated.
    """

    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    backward: bool = False
    loss: Callable[[Any], Tensor] | None = None

    def forward(self) -> Any:
        """The output."""
        output = self.call(*self.args, **self.kwargs)
        if isinstance(output, Generator | AsyncGenerator | Coroutine):
            raise UsageError(
                f"the model returned a {type(output).__name__}, which computes nothing until it is "
                "read: profile a module whose forward reads it to its end"
            )
        return output

    def scalar(self, output: Any) -> Tensor:
        """What the backward pass starts from."""
        if self.loss is not None:
            loss = self.loss(output)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
                raise UsageError(f"loss gave {shape}: it must give a tensor of one element")
            return loss
        parts = [tensor.sum() for tensor in tensors_in(output) if tensor.requires_grad]
        if not parts:
            raise UsageError(
                "backward=True, but no output of the model requires a gradient: "
                "enable gradients, or pass loss=function(output)"
            )
        return sum(parts[1:], parts[0])


@dataclass(frozen=True)
class Times:
    """Seconds of one timed run: of the whole, and by module number."""

    forward: float
    backward: float
    forward_by_module: Mapping[int, float]
    backward_by_module: Mapping[int, float]


def count(
    root: nn.Module, run: Run, rules: RuleBook, *, fake: bool, memory: bool
) -> tuple[FlopCounter, Mapping[int, int]]:
    """Run once under a counter; also the bytes saved for the backward pass, by module number."""
    counter = FlopCounter(root, rules)

    def module_now() -> int:
        return counter.where()[0]

    fakes = FakeTensorMode(allow_non_fake_inputs=True) if fake else None
    saved: Any = nullcontext()
    if memory:
        saved = SavedBytes(root, module_now, fakes.from_tensor if fakes else lambda tensor: tensor)
    with ExitStack() as stack:
        stack.enter_context(fakes or nullcontext())
        stack.enter_context(counter)
        with saved:
            output = run.forward()
        if run.backward:
            run.scalar(output).backward()  # type: ignore[no-untyped-call]
    by_module = dict(saved.by_module) if memory else {}
    by_module.pop(OUTSIDE, None)
    return counter, by_module


def time_modules(root: nn.Module, run: Run, device: torch.device, *, warm_up: int) -> Times:
    """Run with time marks around each module, and nothing else in the way.

    `warm_up` runs come first, with the marks too, so that compiled code is compiled by then.
    """
    clock = clock_for(device)
    timer = ModuleTimer(ModuleIndex(root), clock)
    timer.start()
    try:
        for _ in range(warm_up):
            output = run.forward()
            if run.backward:
                run.scalar(output).backward()  # type: ignore[no-untyped-call]
        timer.reset()
        for parameter in parameters_of(root):
            parameter.grad = None
        begin = clock.mark()
        output = run.forward()
        middle = clock.mark()
        if run.backward:
            run.scalar(output).backward()  # type: ignore[no-untyped-call]
        end = clock.mark()
    finally:
        timer.stop()
    return Times(
        forward=clock.between(begin, middle),
        backward=clock.between(middle, end) if run.backward else 0.0,
        forward_by_module=timer.forward_seconds(),
        backward_by_module=timer.backward_seconds(),
    )
