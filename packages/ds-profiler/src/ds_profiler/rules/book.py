"""Which rule an operator is counted by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from ds_profiler.errors import UsageError
from ds_profiler.rules import attention, convolution, matmul, pointwise, recurrent
from ds_profiler.rules.rule import Rule, free
from ds_profiler.rules.zero import FREE_NAMES, FREE_NAMESPACES, SCALAR_BOOKKEEPING

Operator = str | OpOverload | OpOverloadPacket


class RuleBook:
    """An immutable set of counting rules; `with_rule` makes an extended one.

    Operators are named as in their schema, without the overload: `"aten::mm"`, `"my_lib::my_op"`.
    An operator that has no rule of its own is counted by PyTorch's own tags: views are free, a
    point-wise operator costs one operation for each floating-point element of its output. What is
    left has no rule, and is listed by the profile as uncounted.
    """

    def __init__(self, rules: Mapping[str, Rule]) -> None:
        self._rules = dict(rules)

    def with_rule(self, operator: Operator, rule: Rule) -> RuleBook:
        """This book, with `operator` counted by `rule(args, kwargs, out) -> Cost`.

        Args:
            operator: its name, or the operator itself (`torch.ops.my_lib.my_op`).
            rule: tells the cost from shapes; must not read values. `ds_profiler.Cost(macs, other)`.
        """
        return RuleBook(self._rules | {_name_of(operator): rule})

    def without_cost(self, *operators: Operator) -> RuleBook:
        """This book, with `operators` known to cost nothing."""
        return RuleBook(self._rules | {_name_of(operator): free for operator in operators})

    def find(self, func: OpOverload) -> Rule | None:
        """The rule for `func`, or None if nothing is known of it."""
        name = func._schema.name
        rule = self._rules.get(name)
        if rule is not None:
            return rule
        base = name[:-1] if name.endswith("_") and not name.endswith("__") else name
        if base in self._rules:
            return self._rules[base]
        if base in FREE_NAMES or name in FREE_NAMES or func.namespace in FREE_NAMESPACES:
            return free
        if func._overloadname == "Scalar" and name in SCALAR_BOOKKEEPING:
            return free
        return _by_tags(func, name)


def _by_tags(func: OpOverload, name: str) -> Rule | None:
    if func.is_view:
        return free
    if name.startswith("aten::_foreach_"):
        return pointwise.FOREACH
    if torch.Tag.pointwise in func.tags:
        return pointwise.per_output
    return None


def _name_of(operator: Operator) -> str:
    if isinstance(operator, OpOverload):
        return operator._schema.name
    if isinstance(operator, OpOverloadPacket):
        return operator._qualified_op_name
    name: Any = operator
    if not isinstance(name, str) or name.count("::") != 1:
        raise UsageError(
            f"{operator!r} names no operator: say 'namespace::name' or torch.ops.namespace.name"
        )
    return name


def default_rules() -> RuleBook:
    """Rules for everything in `aten` that this package knows."""
    return RuleBook(
        {
            **pointwise.RULES,
            **matmul.RULES,
            **convolution.RULES,
            **attention.RULES,
            **recurrent.RULES,
        }
    )
