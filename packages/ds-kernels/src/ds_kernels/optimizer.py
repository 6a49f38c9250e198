"""The torch.optim.Optimizer that steps all parameters of a group in one call of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from ds_kernels import backend
from ds_kernels.dense import aligned_views
from ds_kernels.errors import OptionError, TensorError
from ds_kernels.formulas import Formula, Rule
from ds_kernels.lanes import DTYPE_CODES, Lane, check
from ds_kernels.memory import HugePages, zeros_beside

Params = Iterable[Any]  # tensors, (name, tensor) pairs or groups: torch accepts all three
Outs = Mapping[Tensor, Tensor] | Sequence[Tensor | None]


class KernelOptimizer(torch.optim.Optimizer):
    """Base of the optimizers of this package. Steps CPU tensors only.

    State dicts have the names and meanings of torch's optimizer of the same algorithm, in both
    directions. Moments are kept in `state_dtype` whatever the parameters' dtype is.

    Attributes:
        rule: the algorithm.
    """

    rule: ClassVar[Rule]

    def __init__(
        self, params: Params, defaults: dict[str, Any], *, state_dtype: torch.dtype
    ) -> None:
        if state_dtype not in DTYPE_CODES:
            raise OptionError(f"state_dtype is {state_dtype}; use float32, bfloat16 or float16")
        self.state_dtype = state_dtype
        self._ratios: list[float | Tensor] = []  # of the last step, one a stepped parameter
        self._pages = HugePages()
        super().__init__(params, defaults)

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
        with ExitStack() as views:
            flats = [views.enter_context(aligned_views(lanes)) for _, lanes in batches]
            for flat in flats:
                self._check(flat)
            for (formula, lanes), flat in zip(batches, flats, strict=True):
                self._ratios += self._apply(formula, flat)
                for lane in lanes:
                    self.state[lane.param]["step"] += 1
                    _mark_changed(lane)
        return loss

    def _batches(
        self, outs: Mapping[Tensor, Tensor], grad_scale: float
    ) -> list[tuple[Formula, list[Lane]]]:
        """What can be stepped in one call: parameters of a group that took as many steps."""
        batches = []
        for index, group in enumerate(self.param_groups):
            by_count: dict[int, list[Lane]] = {}
            for position, param in enumerate(group["params"]):
                if param.grad is not None:
                    lane = self._lane(Label(self, index, position), param, group, outs.get(param))
                    by_count.setdefault(int(self.state[param]["step"]) + 1, []).append(lane)
            for count, lanes in by_count.items():
                batches.append((self.rule.scalars(group, count, grad_scale), lanes))
        return batches

    def _check(self, lanes: list[Lane]) -> None:
        for lane in lanes:
            check(lane)

    def _apply(self, formula: Formula, lanes: list[Lane]) -> list[float | Tensor]:
        ratios = backend.select().run_checked(formula, lanes)
        self._pages.settle(lanes)
        return [*ratios]

    def _lane(self, label: Label, param: Tensor, group: dict[str, Any], out: Tensor | None) -> Lane:
        state = self.state[param]
        if "step" not in state:
            state["step"] = _step_count(0)
        names = self._state_names(group)
        for name in names:
            if name not in state:
                state[name] = self._new_state(name, param, group)
        assert param.grad is not None
        grad = param.grad.resolve_neg()
        return Lane(param, grad, tuple(state[name] for name in names), out, label, names)

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


def _mark_changed(lane: Lane) -> None:
    """Tells autograd, so that a backward pass that still needs the old values is refused."""
    for tensor in (lane.param, lane.out):
        if tensor is not None and not tensor.is_inference():
            increment_version(tensor)


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
