"""The torch.optim.Optimizer that steps all parameters of a group in one call of a kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from ds_kernels import backend
from ds_kernels.dense import flattened
from ds_kernels.errors import OptionError, TensorError
from ds_kernels.formulas import Formula, Rule
from ds_kernels.lanes import CPU, DTYPE_CODES, Lane
from ds_kernels.memory import HugePages, zeros_beside

Params = Iterable[Any]  # tensors, (name, tensor) pairs or groups: torch accepts all three
Outs = Mapping[Tensor, Tensor] | Sequence[Tensor | None]


class KernelOptimizer(torch.optim.Optimizer):
    """Base of the optimizers of this package. Steps CPU tensors only.

    State dicts have the names and meanings of torch's optimizer of the same algorithm, in both
    directions. Moments are kept in `state_dtype` whatever the parameters' dtype is.

    Attributes:
        rule: the algorithm.
        device: where parameters must lie; None: anywhere.
    """

    rule: ClassVar[Rule]
    device: ClassVar[torch.device | None] = CPU

    def __init__(
        self, params: Params, defaults: dict[str, Any], *, state_dtype: torch.dtype
    ) -> None:
        if state_dtype not in DTYPE_CODES:
            raise OptionError(f"state_dtype is {state_dtype}; use float32, bfloat16 or float16")
        self.state_dtype = state_dtype
        self._ratios: list[float | Tensor] = []  # of the last step, one a stepped parameter
        self._pages = HugePages()
        super().__init__(params, defaults)

    @staticmethod
    def profile_hook_step(func: Callable[..., Any]) -> Callable[..., Any]:
        """torch's wrapper of `step`, entered only while a profiler or a hook listens.

        It calls operators to mark the step's begin and end. After a pass over memory their code is
        in no near cache: 0.12 ms a step.
        """
        listened = torch.optim.Optimizer.profile_hook_step(func)

        @functools.wraps(func)
        def wrapper(self: KernelOptimizer, *args: Any, **kwargs: Any) -> Any:
            return (listened if _has_listeners(self) else func)(self, *args, **kwargs)

        return wrapper

    @torch.no_grad()
    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        grad_scale: float = 1.0,
        out: Outs | None = None,
    ) -> Any:
        """Update every parameter that has a gradient, or none if one of them cannot be.

        Args:
            closure: re-evaluates the model and returns the loss.
            grad_scale: factor on every gradient, applied inside the pass (unscale and clip).
            out: low-precision copies to write in the same pass: a mapping from parameter to
                tensor, or a sequence aligned with the parameters of all groups (None: no copy).
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        batches = self._batches(self._outs(out), grad_scale)
        self._ratios = []
        flats = [flattened(batch.lanes, self.device) for batch in batches]
        for batch, flat in zip(batches, flats, strict=True):
            self._ratios += self._apply(batch.formula, flat.lanes)
            for lane in batch.lanes:
                _set_count(self.state[lane.param], batch.steps)
            _mark_changed(batch.lanes)
        for flat in flats:
            flat.copy_back()
        return loss

    def _batches(self, outs: Mapping[Tensor, Tensor], grad_scale: float) -> list[Batch]:
        """What is to be stepped, in as few calls as can be."""
        batches = []
        for index, group in enumerate(self.param_groups):
            by_count: dict[int, list[Lane]] = {}
            for position, param in enumerate(group["params"]):
                if param.grad is not None:
                    state = self._state_of(param, group)
                    out = outs.get(param) if outs else None
                    lane = self._lane(param, state, group, out, Label(self, index, position))
                    by_count.setdefault(int(state["step"]) + 1, []).append(lane)
            for count, lanes in by_count.items():
                batches.append(Batch(self.rule.scalars(group, count, grad_scale), count, lanes))
        return batches

    def _apply(self, formula: Formula, lanes: list[Lane]) -> list[float | Tensor]:
        self._pages.settle(lanes)
        return [*backend.select().run_checked(formula, lanes)]

    def _state_of(self, param: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        state: dict[str, Any] = self.state[param]
        if "step" not in state:
            state["step"] = _step_count(0)
        for name in self._state_names(group):
            if name not in state:
                state[name] = self._new_state(name, param, group)
        return state

    def _lane(
        self,
        param: Tensor,
        state: dict[str, Any],
        group: dict[str, Any],
        out: Tensor | None,
        label: Label,
    ) -> Lane:
        names = self._state_names(group)
        grad = param.grad
        assert grad is not None
        if grad.is_neg():
            grad = grad.resolve_neg()
        return Lane(param, grad, tuple([state[name] for name in names]), out, label, names)

    def _state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return self.rule.state_names

    def _new_state(self, name: str, param: Tensor, group: dict[str, Any]) -> Tensor:
        return zeros_beside(param, self.state_dtype, self.rule.state_names.index(name))

    def _outs(self, out: Outs | None) -> Mapping[Tensor, Tensor]:
        if out is None:
            return {}
        if isinstance(out, Mapping):
            return out
        params = [param for group in self.param_groups for param in group["params"]]
        if len(out) != len(params):
            raise TensorError(f"out has {len(out)} tensors; the optimizer has {len(params)}")
        return {p: copy for p, copy in zip(params, out, strict=True) if copy is not None}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, with options of their own if they have any."""
        refuse_amsgrad(param_group.get("amsgrad", False))
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this optimizer or of torch's of the same algorithm.

        torch casts moments to the parameter's dtype; here they keep `state_dtype`.
        """
        check_saved_shapes(self, state_dict, self.rule.state_names)
        super().load_state_dict(state_dict)
        keep_moments(self, state_dict, self.rule.state_names, self.state_dtype)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"state_dtype": self.state_dtype, "_ratios": self._ratios}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._pages = HugePages()
        for group in self.param_groups:
            refuse_amsgrad(group.get("amsgrad", False))
            for name, value in self.defaults.items():
                group.setdefault(name, value)


def _has_listeners(optimizer: torch.optim.Optimizer) -> bool:
    own = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
    of_all = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
    return torch._C._autograd._profiler_enabled() or any(own) or any(of_all)


class Batch(NamedTuple):
    """What one call of a kernel steps: parameters of a group that took as many steps.

    Attributes:
        formula: the scalars of this step.
        steps: how many that makes, this one included.
        lanes: the tensors of each parameter.
    """

    formula: Formula
    steps: int
    lanes: list[Lane]


class Label(NamedTuple):
    """Names a parameter in messages; spelled out only when there is one."""

    optimizer: torch.optim.Optimizer
    group: int
    position: int

    def __str__(self) -> str:
        group = self.optimizer.param_groups[self.group]
        shape = tuple(group["params"][self.position].shape)
        names = group.get("param_names")
        if names:
            return f"parameter '{names[self.position]}' {shape}"
        return f"parameter {self.position} of group {self.group} {shape}"


def check_saved_shapes(
    optimizer: torch.optim.Optimizer, state_dict: dict[str, Any], names: Iterable[str]
) -> None:
    """Raise unless the saved tensors called `names` have the shapes of their parameters."""
    for label, param, saved in _saved(optimizer, state_dict):
        for name in names:
            value = saved.get(name)
            if isinstance(value, Tensor) and value.shape != param.shape:
                raise TensorError(
                    f"{name} of {label} has shape {tuple(value.shape)} in the state dict: it was "
                    "saved for other parameters, or for these in another order"
                )


def keep_moments(
    optimizer: torch.optim.Optimizer,
    state_dict: dict[str, Any],
    names: Iterable[str],
    dtype: torch.dtype,
) -> None:
    """Load the tensors called `names` once more, in `dtype` instead of the parameters'."""
    for _, param, saved in _saved(optimizer, state_dict):
        for name in names:
            if isinstance(saved.get(name), Tensor):
                state = optimizer.state[param]
                state[name] = saved[name].to(param.device, dtype, copy=True)
                # torch's SGD counts no steps: with a buffer it is past the first.
                state["step"] = _step_count(saved.get("step", 1.0))


def _saved(
    optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]
) -> Iterator[tuple[Label, Tensor, dict[str, Any]]]:
    """Each parameter with what was saved for it."""
    groups = zip(optimizer.param_groups, state_dict["param_groups"], strict=False)
    for index, (group, saved_group) in enumerate(groups):
        pairs = zip(group["params"], saved_group["params"], strict=False)
        for position, (param, saved_id) in enumerate(pairs):
            yield Label(optimizer, index, position), param, state_dict["state"].get(saved_id, {})


def _step_count(count: float) -> Tensor:
    # Whatever torch's default device and dtype are: bfloat16 cannot count past 256.
    return torch.tensor(float(count), dtype=torch.float32, device="cpu")


def _set_count(state: dict[str, Any], count: int) -> None:
    if isinstance(state["step"], Tensor):
        state["step"].fill_(count)
    else:  # a state dict without moments may hold a plain number
        state["step"] = count


def _mark_changed(lanes: Iterable[Lane]) -> None:
    """Tells autograd, so that a backward pass that still needs the old values is refused."""
    written = (tensor for lane in lanes for tensor in (lane.param, lane.out))
    increment_version([t for t in written if t is not None and not t.is_inference()])


def check_hyper(**values: Any) -> None:
    """Raise OptionError for hyperparameters out of range, by name."""
    for name, value in values.items():
        numbers = value if isinstance(value, tuple | list) else (value,)
        for number in numbers:
            if float(number) < 0 or float(number) != float(number):
                raise OptionError(f"{name} is {value}; it must not be negative")
        if name == "betas" and (len(numbers) != 2 or any(float(b) >= 1 for b in numbers)):
            raise OptionError(f"betas is {value}; give two numbers in [0, 1)")


def refuse_amsgrad(amsgrad: bool) -> None:
    if amsgrad:
        raise OptionError(
            "amsgrad is not offered by these kernels; use torch.optim.AdamW(amsgrad=True) "
            "(in JSON: torch_adam true)"
        )
