"""Telling when which module of a model runs, without touching the model."""

from __future__ import annotations

import copy
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules import module as hooks
from torch.utils.hooks import RemovableHandle

from ds_profiler.modules import modules_of

OUTSIDE = -1
"""The index of what ran in no module of the model."""


class ModuleIndex:
    """The distinct modules of a model, numbered in the order of `modules()`; the root is 0."""

    def __init__(self, root: nn.Module) -> None:
        self.modules = modules_of(root)
        self._numbers = {id(module): number for number, module in enumerate(self.modules)}

    def without_compiled(self) -> ModuleIndex:
        """The same numbers for the modules that are not inside compiled code.

        Hooks are compiled along with the module they run for; for those left out they come to
        nothing.
        """
        visible = copy.copy(self)
        visible._numbers = dict(self._numbers)
        inside: set[nn.Module] = set()
        for module in self.modules:
            if hasattr(module, "_orig_mod"):  # the wrapper of `torch.compile`, itself not compiled
                parts = list(module.children())
            elif getattr(module, "_compiled_call_impl", None) is None:
                continue
            else:
                parts = [module]
            for part in parts:
                for hidden in modules_of(part, inside):
                    visible._numbers.pop(id(hidden), None)
        return visible

    def number(self, module: nn.Module) -> int | None:
        """The module's number, or None for one of another model."""
        return self._numbers.get(id(module))


@dataclass(slots=True)
class Call:
    """A module call in progress."""

    number: int
    module: nn.Module
    pending_error: BaseException | None
    data: Any = None


Enter = Callable[[Call, Any], None]
Leave = Callable[[Call, Any, bool], None]


class ModuleWatch:
    """Calls back when a module of the model begins and ends, also when it raises.

    Uses PyTorch's hooks for all modules, so the model itself, and what depends on a module having
    hooks of its own (fast paths), stay as they are. Watches may overlap in any order.

    Args:
        index: the modules to watch; others are ignored.
        enter: gets the call and the arguments, before the module runs.
        leave: gets the call, the output, and whether the module raised.
    """

    def __init__(self, index: ModuleIndex, *, enter: Enter, leave: Leave) -> None:
        self._index = index
        self._enter, self._leave = enter, leave
        self._stacks: dict[int, list[Call]] = {}
        self._handles: list[RemovableHandle] = []
        self._silenced: Any = None
        self._active = False

    def stack(self) -> list[Call]:
        """The calls in progress on this thread, outermost first."""
        return self._stacks.setdefault(threading.get_ident(), [])

    def start(self) -> None:
        """Begin to watch."""
        self._silenced = _silence_compiler()
        self._active = True
        self._handles = [
            hooks.register_module_forward_pre_hook(self._before),
            hooks.register_module_forward_hook(self._after, always_call=True),
        ]

    def runs_last(self) -> bool:
        """Whether no hook for all modules was registered after this watch's."""
        return bool(self._handles) and self._handles[-1].id == next(
            reversed(hooks._global_forward_hooks)
        )

    def stop(self, *, in_hook: bool = False) -> None:
        """Remove the hooks; idempotent.

        `in_hook`: a hook that does not run last calls this, and PyTorch is going through the
        hooks, so the one it may be at stays, without effect, until `stop` is called again.
        """
        self._active = False
        for handle in self._handles[:1] if in_hook else self._handles:
            handle.remove()
        if not in_hook:
            self._handles = []
        self._stacks.clear()
        if self._silenced in warnings.filters:
            warnings.filters.remove(self._silenced)  # type: ignore[attr-defined]

    def _before(self, module: nn.Module, args: Any) -> None:
        number = self._index.number(module)
        if number is None:
            return
        call = Call(number, module, sys.exc_info()[1])
        self.stack().append(call)
        self._enter(call, args)

    def _after(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._index.number(module) is None:
            return
        stack = self.stack()
        if not self._active or not any(call.module is module for call in reversed(stack)):
            return
        while True:  # calls above were left by an exception that runs no hooks (an interrupt)
            call = stack.pop()
            error = sys.exc_info()[1]
            failed = error is not None and error is not call.pending_error
            self._leave(call, output, failed or call.module is not module)
            if call.module is module:
                return


def _silence_compiler() -> Any:
    """Ignore the warning that hooks run twice on a compiled module: ours do not mind.

    Returns the entry added to the filters, or None where nothing can be compiled yet.
    """
    if "torch._dynamo" not in sys.modules:
        return None
    warnings.filterwarnings("ignore", message=r"Using `torch.compile\(module\)` when there")
    return warnings.filters[0]
