"""Values behind a parameter, whatever the stage: the functions that programs call.

The `full` functions are collective. Values are fp32. Gradients can be read between the closing
`backward` of a window and its `step`.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from ds_core.contracts import WEIGHT
from ds_core.errors import StateError
from ds_zero.access import GRADIENT, Access
from ds_zero.gathered import gathered
from ds_zero.params import shard_of

ATTRIBUTE = "ds_access"
"""The attribute through which a strategy lets these functions find what it owns."""


def show_access(access: Access, params: list[nn.Parameter]) -> None:
    """Let the functions below find `access`; set here only."""
    for param in params:
        setattr(param, ATTRIBUTE, access)


def hide_access(params: list[nn.Parameter]) -> None:
    """Undo `show_access`."""
    for param in params:
        param.__dict__.pop(ATTRIBUTE, None)


def safe_get_full_fp32_param(param: nn.Parameter) -> Tensor | None:
    """The whole fp32 value that the optimizer updates."""
    access = _access(param)
    if access is not None:
        return access.full(param, WEIGHT)
    shard = shard_of(param)
    if shard is None:
        return param.detach().float()
    with gathered([shard]):
        return param.detach().float().clone()


def safe_get_full_grad(param: nn.Parameter) -> Tensor | None:
    """The whole averaged gradient, or None before the window closed or if nobody used `param`."""
    access = _access(param)
    if access is None:
        return None if param.grad is None else param.grad.float()
    return access.full(param, GRADIENT)


def safe_get_full_optimizer_state(param: nn.Parameter, optim_state_key: str) -> Tensor | None:
    """A whole moment (`exp_avg`, ...), or None before the first step."""
    access = _access(param)
    return None if access is None else access.full(param, optim_state_key)


def safe_set_full_fp32_param(param: nn.Parameter, value: Tensor) -> None:
    """Replace the value that the optimizer updates, and the parameter's with it."""
    _required(param).set_full(param, WEIGHT, value)


def safe_set_full_grad(param: nn.Parameter, value: Tensor) -> None:
    """Replace the averaged gradient."""
    _required(param).set_full(param, GRADIENT, value)


def safe_set_full_optimizer_state(param: nn.Parameter, value: Tensor, optim_state_key: str) -> None:
    """Replace a moment."""
    _required(param).set_full(param, optim_state_key, value)


def safe_get_local_fp32_param(param: nn.Parameter) -> Tensor | None:
    """A flat copy of what this rank owns of the fp32 value."""
    access = _access(param)
    return param.detach().float().flatten() if access is None else access.local(param, WEIGHT)


def safe_get_local_grad(param: nn.Parameter) -> Tensor | None:
    """A flat copy of what this rank owns of the averaged gradient."""
    access = _access(param)
    return safe_get_full_grad(param) if access is None else access.local(param, GRADIENT)


def safe_get_local_optimizer_state(param: nn.Parameter, optim_state_key: str) -> Tensor | None:
    """A flat copy of what this rank owns of a moment."""
    access = _access(param)
    return None if access is None else access.local(param, optim_state_key)


def safe_set_local_fp32_param(param: nn.Parameter, value: Tensor) -> None:
    """Replace what this rank owns of the value; flat."""
    _required(param).set_local(param, WEIGHT, value)


def safe_set_local_grad(param: nn.Parameter, value: Tensor) -> None:
    """Replace what this rank owns of the averaged gradient; flat."""
    _required(param).set_local(param, GRADIENT, value)


def safe_set_local_optimizer_state(
    param: nn.Parameter, value: Tensor, optim_state_key: str
) -> None:
    """Replace what this rank owns of a moment; flat."""
    _required(param).set_local(param, optim_state_key, value)


def safe_update_full_grad_vectorized(
    param_list: list[nn.Parameter], update_func: Callable[[Tensor, nn.Parameter], Tensor]
) -> None:
    """Replace each gradient by `update_func(gradient, param)`."""
    for param in param_list:
        grad = safe_get_full_grad(param)
        if grad is not None:
            safe_set_full_grad(param, update_func(grad, param))


def _access(param: nn.Parameter) -> Access | None:
    found = param.__dict__.get(ATTRIBUTE)
    return found if isinstance(found, Access) and param in found else None


def _required(param: nn.Parameter) -> Access:
    access = _access(param)
    if access is None:
        raise StateError(
            "no sharded optimizer updates this parameter; it is frozen, or no engine of stage 1, "
            "2 or 3 owns it"
        )
    return access
