"""The training engine: one step, from batch to updated weights."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ds_core.contracts import Hook, Schedule, StepEvent, StepReport, UpdateStrategy
from ds_core.errors import StateError
from ds_core.groups import Groups
from ds_core.hooks import HookList
from ds_core.naming import ParameterNames
from ds_core.precision.mismatch import explain_formats
from ds_core.window import AccumulationWindow

logger = logging.getLogger(__name__)


@dataclass
class Counters:
    """Progress of a run; saved in checkpoints.

    Attributes:
        steps: optimizer steps, skipped ones included.
        skipped: steps left out because of non-finite gradients.
        micro_batches: backward passes on this rank.
        samples: training samples over all ranks.
    """

    steps: int = 0
    skipped: int = 0
    micro_batches: int = 0
    samples: int = 0


class Engine(nn.Module):
    """Trains `module` by way of an update strategy.

        loss = engine(batch)
        engine.backward(loss)
        engine.step()

    Call `step` after every `backward`, or only at the end of a window: an update happens at the
    boundary, every `accumulation_steps` micro-batches or where it is forced.

    Args:
        module: the user's module, on its device and in its format.
        strategy: owns parameters and update; the engine closes it.
        groups: process groups.
        micro_batch_size: samples of one micro-batch on one rank; for counting samples.
        accumulation_steps: micro-batches of a window.
        schedule: moves the learning rate after each applied step, or None.
        state_scope: set before names in checkpoints where ranks hold different tensors under the
            same names (model-parallel ranks of an `mpu`); "" where names are enough.
        hooks: called around the phases of a step, in this order.
        autocast: makes the context that forward runs in, e.g. `torch.autocast`.
    """

    def __init__(
        self,
        module: nn.Module,
        strategy: UpdateStrategy,
        *,
        groups: Groups,
        micro_batch_size: int = 1,
        accumulation_steps: int = 1,
        schedule: Schedule | None = None,
        hooks: Iterable[Hook] = (),
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        state_scope: str = "",
    ) -> None:
        super().__init__()
        self.module = module
        self.strategy = strategy
        self.groups = groups
        self.schedule = schedule
        self.state_scope = state_scope
        self.counters = Counters()
        self.window = AccumulationWindow(
            accumulation_steps, groups.data, ahead_of=_first_gradients(module)
        )
        self.last_report: StepReport | None = None
        self.micro_batch_size = micro_batch_size
        self.hooks = HookList(hooks)
        self._autocast = autocast
        self._no_sync = False
        self._backward_since_step = False
        self._forward_since_step: bool | None = None  # None: the program calls the module itself
        self._warned_of_idle_step = False
        self._losses: Tensor | None = None
        self._closed = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's output; hooks and autocast apply."""
        self.require_open()
        with self._autocast():
            if not self.training:
                return self._call(*self.hooks.prepare_inputs(args, kwargs))
            self._forward_since_step = True
            output = self._call(*self.hooks.before_forward(args, kwargs))
        self.hooks.after_forward(output)
        return output

    def backward(
        self,
        loss: Tensor,
        retain_graph: bool = False,
        scale_wrt_gas: bool = True,
        *,
        weight: float | None = None,
    ) -> Tensor:
        """Add this micro-batch's gradients to the window; the last one reduces over the ranks.

        After the last micro-batch every parameter's gradient is the mean over micro-batches and
        ranks.

        Args:
            loss: the mean loss of the micro-batch, a scalar; its scaling is the engine's affair.
            retain_graph: keep the graph for another backward.
            scale_wrt_gas: False if the caller divided the loss by the accumulation steps.
            weight: this micro-batch's share of the mean (its number of tokens), for all
                micro-batches of a window or for none; default: all alike.

        Returns:
            `loss`, unchanged.
        """
        self.require_open()
        sync = self.window.will_close() and not self._no_sync
        weight = None if weight is None else self.window.as_weight(weight)
        self.window.add(weight, divided=not scale_wrt_gas)
        self.hooks.before_backward(loss)
        try:
            self.strategy.backward(
                loss if weight is None else loss * weight,
                sync=sync,
                divisor=self.window.divisor(closing=sync),
                retain_graph=retain_graph,
            )
        except BaseException:
            self.zero_grad()  # what arrived of this pass cannot be told from the rest
            raise
        self.hooks.after_backward()
        self._backward_since_step = True
        self.counters.micro_batches += 1
        seen = loss.detach()
        self._losses = seen if self._losses is None else self._losses + seen
        return loss

    def step(self) -> StepReport | None:
        """At a boundary update the weights, move the schedule and clear gradients.

        Returns:
            What happened, or None between boundaries.
        """
        self.require_open()
        maybe_idle = not self._backward_since_step
        if maybe_idle:
            self.window.skip()
            self.counters.micro_batches += 1
            if self._forward_since_step is False:
                self._warn_of_idle_step()
            self.window.divisor(closing=self.window.is_boundary())  # as backward() of the others
            self.strategy.skip_pass()
        self._backward_since_step = False
        if self._forward_since_step:
            self._forward_since_step = False
        if not self.window.is_boundary():
            return None
        self.hooks.before_step()
        lr = tuple(float(group["lr"]) for group in self.strategy.optimizer.param_groups)
        micro_batches = self.window.seen
        report = self.strategy.step(divisor=self.window.divisor(closing=True))
        self.window.require_same_everywhere()
        if maybe_idle and report.grad_norm == 0.0:
            self._warn_of_idle_step()
        self.window.close()
        self._count(report, micro_batches)
        if self.schedule is not None and not report.skipped:
            self._move_schedule(self.schedule)
        self.hooks.after_step(self._event(report, lr, micro_batches))
        self._losses = None
        return report

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the open window; its micro-batches no longer count."""
        self.require_open()
        self.strategy.zero_grad()
        self.window.close()
        self._backward_since_step = False
        self._losses = None

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes inside only accumulate; accepted at every stage."""
        before, self._no_sync = self._no_sync, True
        try:
            yield
        finally:
            self._no_sync = before

    def set_gradient_accumulation_boundary(self, is_boundary: bool | None) -> None:
        """Force the coming micro-batches to end their window or not; None counts again."""
        self.window.forced = is_boundary

    def is_gradient_accumulation_boundary(self) -> bool:
        """True if `step` would update, given the micro-batches seen."""
        return self.window.is_boundary()

    def gather(
        self, params: Sequence[nn.Parameter], *, modifier_rank: int | None = None
    ) -> AbstractContextManager[None]:
        """Inside, `params` are whole on every rank."""
        self.require_open()
        return self.strategy.gather(params, modifier_rank=modifier_rank)

    def destroy(self) -> None:
        """Give the module back as it was and free everything; the engine is of no use after."""
        if self._closed:
            return
        self._closed = True
        self.hooks.close()
        self.strategy.close()
        self._losses = None
        self.schedule = None

    def require_open(self) -> None:
        """Raise a `StateError` if this engine was destroyed."""
        if self._closed:
            raise StateError("this engine was destroyed; its module can be used on its own")

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            modules = self.__dict__.get("_modules", {})
            if name != "module" and "module" in modules:
                return getattr(modules["module"], name)
            raise

    def _warn_of_idle_step(self) -> None:
        """Say once that a step had nothing to do; a rank may skip a backward, all by mistake."""
        if not self._warned_of_idle_step and self.groups.world.rank == 0:
            logger.warning(
                "step() was called without a backward pass since the last one: it counts as a "
                "micro-batch without gradients, which moves the window, the counters and the "
                "schedule. Call it once after backward(); engine.step() and the step() of the "
                "returned optimizer are the same"
            )
        self._warned_of_idle_step = True

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return self.module(*args, **kwargs)
        except RuntimeError as error:
            explain_formats(error, self.module, args, kwargs)
            raise

    def _move_schedule(self, schedule: Schedule) -> None:
        schedule.step()

    def _count(self, report: StepReport, micro_batches: int) -> None:
        self.last_report = report
        self.counters.steps += 1
        self.counters.skipped += report.skipped
        self.counters.samples += self.micro_batch_size * micro_batches * self.groups.data.world_size

    def _event(self, report: StepReport, lr: tuple[float, ...], micro_batches: int) -> StepEvent:
        return StepEvent(
            step=self.counters.steps,
            samples=self.counters.samples,
            loss=None if self._losses is None else self._losses / micro_batches,
            lr=lr,
            grad_norm=report.grad_norm,
            loss_scale=report.loss_scale,
            skipped=report.skipped,
        )


def _first_gradients(module: nn.Module) -> str:
    """What the ranks reduce first: gradients of what was registered last."""
    names = [name for param, name in ParameterNames(module).names.items() if param.requires_grad]
    return f"gradients of {names[-1]}" if names else "gradients"


def torch_autocast(
    device_type: str, dtype: torch.dtype
) -> Callable[[], AbstractContextManager[Any]]:
    """A maker of `torch.autocast` contexts for `Engine(autocast=...)`."""
    return lambda: torch.autocast(device_type, dtype=dtype)
