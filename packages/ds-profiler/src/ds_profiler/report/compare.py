"""What changed from one profile to another."""

from __future__ import annotations

from dataclasses import dataclass

from ds_profiler.result import ModuleProfile, Profile
from ds_profiler.units import duration_to_string, number_to_string


@dataclass(frozen=True, slots=True)
class Change:
    """One number of one module in both profiles (times in seconds); None where it is missing."""

    module: str
    measure: str
    before: float | None
    after: float | None

    @property
    def ratio(self) -> float | None:
        """`after / before`, if both are there and `before` is not 0."""
        if not self.before or self.after is None:
            return None
        return self.after / self.before


def compare(before: Profile, after: Profile, *, tolerance: float = 0.05) -> list[Change]:
    """The differences, modules matched by name, in the order of the model.

    Counts differ if they differ at all; times if by more than `tolerance` of the larger.
    """
    old = {module.name: module for _, module in before.root.walk()}
    new = {module.name: module for _, module in after.root.walk()}
    changes = []
    for name in dict.fromkeys((*new, *old)):
        first, second = _measures(old.get(name)), _measures(new.get(name))
        for measure in first | second:
            left, right = first.get(measure), second.get(measure)
            if _differs(measure, left, right, tolerance):
                changes.append(Change(name, measure, left, right))
    return changes


def _measures(module: ModuleProfile | None) -> dict[str, float]:
    if module is None:
        return {}
    return {
        "params": module.params,
        "forward flops": module.forward.flops,
        "backward flops": module.backward.flops,
        "recomputed flops": module.recompute.flops,
        "activation bytes": module.activation_bytes,
        "forward time": module.forward_seconds,
        "backward time": module.backward_seconds,
    }


def _differs(measure: str, left: float | None, right: float | None, tolerance: float) -> bool:
    if left is None or right is None:
        return bool(left or right)
    if measure.endswith("time"):
        return abs(left - right) > tolerance * max(left, right)
    return left != right


def comparison_text(changes: list[Change]) -> str:
    """The changes as aligned text."""
    if not changes:
        return "no differences"
    rows = [("module", "what", "before", "after", "ratio")]
    for change in changes:
        ratio = "-" if change.ratio is None else f"{change.ratio:.3g}x"
        rows.append(
            (
                change.module or "(model)",
                change.measure,
                _show(change.measure, change.before),
                _show(change.measure, change.after),
                ratio,
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def _show(measure: str, value: float | None) -> str:
    if value is None:
        return "-"
    return duration_to_string(value) if measure.endswith("time") else number_to_string(value)
