"""Gradients of weights that wait until there is time for them.

While a `DeferredWeights` is active, linear and convolution layers run as operations whose backward
gives the gradient of the input only, and leaves what the weight's needs in the object. So one
ordinary backward pass is the first part, which frees the graph as always, and the second part is
matrix products alone: no graph is kept and none is walked twice. The order that makes use of it is
that of Qi et al., "Zero Bubble Pipeline Parallelism" (ICLR 2024).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class Layer(Protocol):
    """An operation with a weight, and the two halves of its backward."""

    def run(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor: ...

    def input_gradient(self, grad: Tensor, inputs: Tensor, weight: Tensor) -> Tensor: ...

    def weight_gradient(
        self, grad: Tensor, inputs: Tensor, weight: Tensor, total: Tensor | None
    ) -> Tensor:
        """Added to `total`, if there is one."""

    def bias_gradient(self, grad: Tensor) -> Tensor: ...


class Linear:
    """Products of rows with a matrix."""

    def run(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return functional.linear(inputs, weight, bias)

    def input_gradient(self, grad: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        return grad @ weight

    def weight_gradient(
        self, grad: Tensor, inputs: Tensor, weight: Tensor, total: Tensor | None
    ) -> Tensor:
        rows, columns = grad.reshape(-1, grad.shape[-1]).t(), inputs.reshape(-1, inputs.shape[-1])
        return rows @ columns if total is None else total.addmm_(rows, columns)

    def bias_gradient(self, grad: Tensor) -> Tensor:
        return grad.reshape(-1, grad.shape[-1]).sum(0)


@dataclass(frozen=True)
class Convolution:
    """A convolution over 1 to 3 axes of a batch."""

    function: Callable[..., Tensor]
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int

    def run(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        where = (self.stride, self.padding, self.dilation, self.groups)
        return self.function(inputs, weight, bias, *where)

    def input_gradient(self, grad: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        return self._backward(grad, inputs, weight, 0)

    def weight_gradient(
        self, grad: Tensor, inputs: Tensor, weight: Tensor, total: Tensor | None
    ) -> Tensor:
        found = self._backward(grad, inputs, weight, 1)
        return found if total is None else total.add_(found)

    def bias_gradient(self, grad: Tensor) -> Tensor:
        return grad.sum([axis for axis in range(grad.dim()) if axis != 1])

    def _backward(self, grad: Tensor, inputs: Tensor, weight: Tensor, wanted: int) -> Tensor:
        where = (self.stride, self.padding, self.dilation, False, [0] * len(self.stride))
        mask = [wanted == 0, wanted == 1, False]
        found: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
            grad, inputs, weight, None, *where, self.groups, mask
        )
        return found[wanted]


class DeferredWeights(TorchFunctionMode):
    """The weight gradients of one micro-batch.

        later = DeferredWeights()
        with later:
            output = layers(inputs)
        output.backward(grad)  # gradients of inputs, and of weights that cannot wait
        later.run()            # the other weights

    What waits are the weights and biases of linear and convolution layers that are parameters;
    those of other operations get their gradients in the first part. Activations may be recomputed,
    if this is active while they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self._left: deque[Callable[[], None]] = deque()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        read = _LAYERS.get(func)
        call = read(func, *args, **kwargs) if read is not None else None
        if call is None or not _can_wait(call):
            return func(*args, **kwargs)
        inputs = call.inputs
        kind = inputs.device.type
        if torch.is_autocast_enabled(kind):
            inputs = inputs.to(torch.get_autocast_dtype(kind))
        return _Split.apply(  # type: ignore[no-untyped-call]
            inputs, call.weight.detach(), call, self._left
        )

    def run(self) -> None:
        """Accumulate the gradients that waited."""
        with torch.no_grad():
            while self._left:
                self._left.popleft()()  # and what it holds is freed before the next one


@dataclass(frozen=True)
class _Call:
    layer: Layer
    inputs: Tensor
    weight: Tensor
    bias: Tensor | None


def _linear(_: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> _Call:
    return _Call(Linear(), input, weight, bias)


def _convolution(
    func: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> _Call | None:
    if isinstance(padding, str) or input.dim() != weight.dim():
        return None
    axes = weight.dim() - 2
    stride, padding, dilation = (
        (size,) * axes if isinstance(size, int) else tuple(size)
        for size in (stride, padding, dilation)
    )
    return _Call(Convolution(func, stride, padding, dilation, groups), input, weight, bias)


_LAYERS: dict[Any, Callable[..., _Call | None]] = {
    functional.linear: _linear,
    functional.conv1d: _convolution,
    functional.conv2d: _convolution,
    functional.conv3d: _convolution,
}


def _can_wait(call: _Call) -> bool:
    """Only leaves: what a weight was computed from would need its graph kept.

    An input without a gradient has nothing to come first.
    """
    if not torch.is_grad_enabled() or not call.inputs.requires_grad:
        return False
    if not (call.weight.requires_grad and call.weight.is_leaf):
        return False
    return call.bias is None or call.bias.is_leaf


class _Split(torch.autograd.Function):
    """A layer whose backward does the half that cannot wait.

    Autograd sees no weight here: it would tell hooks of the parameter that no gradient came.
    """

    @staticmethod
    def forward(
        ctx: Any,  # torch's contexts have no useful type
        inputs: Tensor,
        weight: Tensor,
        call: _Call,
        left: deque[Callable[[], None]],
    ) -> Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.layer, ctx.params, ctx.left = call.layer, (call.weight, call.bias), left
        return call.layer.run(inputs, weight, call.bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        layer: Layer = ctx.layer
        inputs = inputs.to(grad.dtype)
        ctx.left.append(_later(layer, grad, inputs, *ctx.params))
        return layer.input_gradient(grad, inputs, weight.to(grad.dtype)), None, None, None


def _later(
    layer: Layer, grad: Tensor, inputs: Tensor, weight: Tensor, bias: Tensor | None
) -> Callable[[], None]:
    def accumulate() -> None:
        if _can_add(weight, grad.dtype):
            layer.weight_gradient(grad, inputs, weight, weight.grad)
            hooks = weight._post_accumulate_grad_hooks or {}
            for hook in tuple(hooks.values()):
                hook(weight)
        else:
            found = layer.weight_gradient(grad, inputs, weight, None).to(weight.dtype)
            torch.autograd.backward([weight], [found])
        if bias is not None and bias.requires_grad:
            torch.autograd.backward([bias], [layer.bias_gradient(grad).to(bias.dtype)])

    return accumulate


def _can_add(param: Tensor, dtype: torch.dtype) -> bool:
    """Whether a product can be added where it is needed, which saves writing it and reading it.

    Autograd does the same by way of another tensor; hooks that want to see that need it.
    """
    total = param.grad
    if total is None or total.is_sparse or param._backward_hooks:
        return False
    return total.dtype == dtype
