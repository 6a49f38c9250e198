"""Counting what a model computes, operator by operator, while it runs."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from ds_profiler.cost import FREE, Cost
from ds_profiler.rules import Rule, RuleBook
from ds_profiler.tally import BACKWARD, FORWARD, RECOMPUTE, Tally
from ds_profiler.watch import OUTSIDE, Call, ModuleIndex, ModuleWatch

_NO_SEQUENCE = 2**63  # nodes that accumulate a leaf's gradient carry no sequence number


class FlopCounter:
    """Counts every operator that runs between `start` and `stop`, by module and by phase.

    Operators are seen where PyTorch dispatches them, so it makes no difference how they were
    called. An operator of the backward pass belongs to the module whose forward pass made its
    autograd node, found by the node's sequence number. Nothing is patched.

    Args:
        root: the model.
        rules: what each operator costs.
        on_failure: called when the root module's forward raises (the counter has not stopped yet).

    Attributes:
        index: the modules and their numbers.
        tally: the sums.
        seconds: time spent on counting itself so far.
        operators: operators seen so far.
    """

    def __init__(
        self, root: nn.Module, rules: RuleBook, *, on_failure: Callable[[], None] | None = None
    ) -> None:
        self.index = ModuleIndex(root)
        self.tally = Tally()
        self.seconds = 0.0
        self.operators = 0
        self._on_failure = on_failure
        self._watch = ModuleWatch(self.index, enter=self._enter, leave=self._leave)
        self._scopes: dict[int, _Scopes] = {}
        self._mode = _CountingMode(self, rules)
        self._home = threading.get_ident()

    def start(self) -> None:
        """Begin to count in this thread and in backward passes started from it."""
        self._home = threading.get_ident()
        self._mark()
        self._watch.start()
        _push_mode(self._mode)

    def runs_last(self) -> bool:
        """Whether the hooks of this counter were registered after all others."""
        return self._watch.runs_last()

    def stop(self, *, in_hook: bool = False) -> None:
        """Stop counting; idempotent. Other dispatch modes may have come and gone meanwhile."""
        self._watch.stop(in_hook=in_hook)
        self._scopes.clear()
        _remove_mode(self._mode)

    def __enter__(self) -> FlopCounter:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def where(self) -> tuple[int, str]:
        """The module and the phase that the operator running now belongs to."""
        node = torch._C._current_autograd_node()
        stack = self._watch.stack()
        if node is None:
            return (stack[-1].number if stack else OUTSIDE), FORWARD
        if stack and stack[-1].data:  # a module entered since: a checkpoint runs again
            return stack[-1].number, RECOMPUTE
        sequence = node._sequence_nr()
        if sequence >= _NO_SEQUENCE:
            return OUTSIDE, BACKWARD
        scopes = self._scopes.get(threading.get_ident())
        if scopes is None or not scopes.knows(sequence):
            scopes = self._scopes[self._home]
        return scopes.find(sequence), BACKWARD

    def _enter(self, call: Call, args: Any) -> None:
        call.data = torch._C._current_autograd_node() is not None
        self.tally.calls[call.number] += not call.data
        if not call.data and threading.get_ident() != self._home:  # a mode sees its own thread
            self.tally.add_unknown(call.number, FORWARD, "forward in another thread")
        self._mark()

    def _leave(self, call: Call, output: Any, failed: bool) -> None:
        self._mark()
        if failed and call.number == 0 and self._on_failure is not None:
            self._on_failure()

    def _mark(self) -> None:
        """Autograd nodes made from now on belong to the innermost module."""
        stack = self._watch.stack()
        scopes = self._scopes.setdefault(threading.get_ident(), _Scopes())
        scopes.add(torch._C._autograd._get_sequence_nr(), stack[-1].number if stack else OUTSIDE)


class _Scopes:
    """Which module made which autograd nodes of one thread: a step function of their numbers."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._modules: list[int] = []

    def add(self, start: int, module: int) -> None:
        if self._starts and self._starts[-1] == start:
            self._modules[-1] = module
        else:
            self._starts.append(start)
            self._modules.append(module)

    def knows(self, sequence: int) -> bool:
        return bool(self._starts) and sequence >= self._starts[0]

    def find(self, sequence: int) -> int:
        at = bisect_right(self._starts, sequence) - 1
        return self._modules[at] if at >= 0 else OUTSIDE


class _CountingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs each operator and books its cost."""

    supports_higher_order_operators = True

    def __init__(self, counter: FlopCounter, rules: RuleBook) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counter = counter
        self._rules = rules
        self._known: dict[Any, Rule | None] = {}
        self._previous: tuple[str, int] = ("", 0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        begin = time.perf_counter()
        kwargs = kwargs or {}
        if types and any(_has_inner_operators(kind) for kind in types):
            return NotImplemented  # a tensor made of tensors: count what it does inside
        if isinstance(func, HigherOrderOperator):
            return self._higher_order(func, args, kwargs)
        if func in self._known:
            rule = self._known[func]
        else:
            rule = self._known[func] = self._rules.find(func)
        if rule is None and _is_composite(func):  # inference mode hands them over whole
            with self:
                return func.decompose(*args, **kwargs)
        run = time.perf_counter()
        out = func(*args, **kwargs)
        done = time.perf_counter()
        self._book(func, rule, args, kwargs, out)
        self._counter.operators += 1
        self._counter.seconds += run - begin + time.perf_counter() - done
        return out

    def _book(
        self, func: OpOverload, rule: Rule | None, args: Any, kwargs: dict[str, Any], out: Any
    ) -> None:
        module, phase = self._counter.where()
        name, tally = func._schema.name, self._counter.tally
        if rule is None:
            tally.add_unknown(module, phase, name)
            return
        cost = rule(args, kwargs, out)
        if name == "aten::_safe_softmax":
            self._forget_mask(module, phase, args[0])
        if cost is not FREE:
            tally.add(module, phase, name, cost)
            self._previous = (name, cost.other)

    def _forget_mask(self, module: int, phase: str, scores: Tensor) -> None:
        """Unfused attention has just added a mask to its scores: the fused kernels' is free."""
        name, other = self._previous
        if name == "aten::add" and other == scores.numel():
            self._counter.tally.add(module, phase, name, Cost(0, -other), calls=-1)

    def _higher_order(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        module, phase = self._counter.where()
        name, tally = str(func), self._counter.tally
        if name in ("flex_attention", "flex_attention_backward"):
            query, key, value = args[:3]
            backward = name == "flex_attention_backward"
            width = (3, 2) if backward else (1, 1)
            pairs = query.numel() // query.shape[-1] * key.shape[-2]
            macs = pairs * (width[0] * query.shape[-1] + width[1] * value.shape[-1])
            tally.add(module, phase, name, Cost(macs))
        else:
            tally.add_unknown(module, phase, name)
        return out


def _has_inner_operators(kind: type) -> bool:
    handler = getattr(kind, "__torch_dispatch__", None)
    return kind is not FakeTensor and handler is not Tensor.__torch_dispatch__


def _is_composite(func: OpOverload) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(),  # type: ignore[no-untyped-call]
        torch._C.DispatchKey.CompositeImplicitAutograd,
    )


def _remove_mode(mode: TorchDispatchMode) -> None:
    """Take `mode` off this thread's stack, wherever in it it lies."""
    above = []
    while torch._C._len_torch_dispatch_stack():
        top = _pop_mode()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        _push_mode(other)
