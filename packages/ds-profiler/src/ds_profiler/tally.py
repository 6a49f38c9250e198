"""The sums of a counting run."""

from __future__ import annotations

from collections import defaultdict

from ds_profiler.cost import Cost

FORWARD = "forward"
BACKWARD = "backward"
RECOMPUTE = "recompute"
PHASES = (FORWARD, BACKWARD, RECOMPUTE)
"""`recompute`: forward passes run again by activation checkpointing, inside the backward pass."""


class Tally:
    """Work by module, phase and operator.

    Attributes:
        work: `(module, phase)` -> operator -> `[calls, macs, other]`.
        unknown: operator without a rule -> number of calls.
        unknown_at: the same by module number.
        calls: module -> forward calls, recomputations left out.
    """

    def __init__(self) -> None:
        self.work: dict[tuple[int, str], dict[str, list[int]]] = {}
        self.unknown: dict[str, int] = {}
        self.unknown_at: dict[int, dict[str, int]] = {}
        self.calls: dict[int, int] = defaultdict(int)

    def add(self, module: int, phase: str, operator: str, cost: Cost, calls: int = 1) -> None:
        """Book one call."""
        operators = self.work.setdefault((module, phase), {})
        row = operators.setdefault(operator, [0, 0, 0])
        row[0] += calls
        row[1] += cost.macs
        row[2] += cost.other

    def add_unknown(self, module: int, phase: str, operator: str) -> None:
        """Book a call of an operator that nobody knows the cost of."""
        self.unknown[operator] = self.unknown.get(operator, 0) + 1
        here = self.unknown_at.setdefault(module, {})
        here[operator] = here.get(operator, 0) + 1

    def cost(self, module: int, phase: str) -> Cost:
        """What `module` itself did, its children left out."""
        rows = self.work.get((module, phase), {}).values()
        return Cost(sum(row[1] for row in rows), sum(row[2] for row in rows))

    def operators(self, module: int, phase: str) -> dict[str, tuple[int, Cost]]:
        """Calls and cost by operator, rows without any left out."""
        rows = self.work.get((module, phase), {})
        return {
            name: (calls, Cost(macs, other))
            for name, (calls, macs, other) in rows.items()
            if calls or macs or other
        }
