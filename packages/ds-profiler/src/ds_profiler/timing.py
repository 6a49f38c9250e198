"""How long each module takes, forward and backward."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ds_profiler.clock import Clock
from ds_profiler.modules import parameters_of
from ds_profiler.watch import Call, ModuleIndex, ModuleWatch


class ModuleTimer:
    """Times the modules of a model between `start` and `stop`.

    A module's backward pass begins when the gradient of an output reaches the autograd node that
    made it, and ends when the gradients of its inputs are complete; without an input to
    differentiate, when the last gradient of its parameters is. Hooks lie on autograd nodes, which
    die with the graph; those on parameters are removed by `stop`.
    """

    def __init__(self, index: ModuleIndex, clock: Clock) -> None:
        self._index, self._clock = index, clock
        visible = index.without_compiled()
        self._watch = ModuleWatch(visible, enter=self._enter, leave=self._leave)
        self._forward: list[tuple[int, Any, Any]] = []
        self._backward: list[_Span] = []
        self._handles: list[RemovableHandle] = []
        self._active = False

    def start(self) -> None:
        """Begin to take times."""
        self._active = True
        self._watch.start()

    def reset(self) -> None:
        """Forget the times taken so far."""
        self._forward.clear()
        self._backward.clear()

    def stop(self, *, in_hook: bool = False) -> None:
        """Stop; idempotent."""
        self._active = False
        self._watch.stop(in_hook=in_hook)
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def forward_seconds(self) -> Mapping[int, float]:
        """Seconds by module number, over all its calls."""
        seconds: dict[int, float] = defaultdict(float)
        for number, begin, end in self._forward:
            seconds[number] += self._clock.between(begin, end)
        return dict(seconds)

    def backward_seconds(self) -> Mapping[int, float]:
        """Seconds by module number, over all its calls."""
        seconds: dict[int, float] = defaultdict(float)
        for span in self._backward:
            if span.begin is not None and span.end is not None:
                seconds[span.number] += self._clock.between(span.begin, span.end)
        return dict(seconds)

    def _enter(self, call: Call, args: Any) -> None:
        nodes = [tensor.grad_fn for tensor in tensors_in(args) if tensor.grad_fn is not None]
        call.data = (nodes, self._clock.mark())

    def _leave(self, call: Call, output: Any, failed: bool) -> None:
        end = self._clock.mark()
        if failed:
            return
        if any(outer.number == call.number for outer in self._watch.stack()):
            return  # a module that calls itself: the outer call's time has this in it
        sources, begin = call.data
        self._forward.append((call.number, begin, end))
        results = [tensor.grad_fn for tensor in tensors_in(output) if tensor.grad_fn is not None]
        if not results:
            return
        span = _Span(call.number)
        self._backward.append(span)
        for node in results:
            node.register_prehook(lambda grads: self._begin(span))
        if any(node not in results for node in sources):
            for node in sources:
                node.register_prehook(lambda grads: self._end(span))
        else:
            self._end_with_parameters(call.module, span)

    def _end_with_parameters(self, module: nn.Module, span: _Span) -> None:
        for parameter in parameters_of(module):
            if parameter.requires_grad and parameter.is_leaf:
                self._handles.append(_when_accumulated(parameter, lambda _: self._end(span)))

    def _begin(self, span: _Span) -> None:
        if self._active and span.begin is None:
            span.begin = self._clock.mark()

    def _end(self, span: _Span) -> None:
        if self._active and span.begin is not None:
            span.end = self._clock.mark()


def _when_accumulated(parameter: nn.Parameter, hook: Callable[[Tensor], None]) -> RemovableHandle:
    handle: RemovableHandle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
    return handle


class _Span:
    """The backward pass of one module call."""

    __slots__ = ("begin", "end", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.begin: Any = None
        self.end: Any = None


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in nested tuples, lists, mappings and dataclass-like outputs."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from tensors_in(getattr(value, name))
