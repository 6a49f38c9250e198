"""A profile as a table for terminals, with the library rich."""

from __future__ import annotations

from typing import Any

from ds_profiler.errors import MissingExtra
from ds_profiler.result import ModuleProfile, Profile
from ds_profiler.units import bytes_to_string, duration_to_string, number_to_string, percent

_COLUMNS = ("module", "params", "fwd flops", "%", "bwd flops", "activations", "fwd", "bwd")
_DISPENSABLE = ("activations", "%", "bwd", "bwd flops", "fwd", "params")


def rich_table(profile: Profile, *, max_depth: int | None = None) -> Any:
    """The module tree for `rich.print(rich_table(profile))`.

    Where the terminal is narrow, columns are left out, so that every value stays whole.

    Args:
        profile: what to show.
        max_depth: deepest level to list; None lists all.
    """
    try:
        from rich.markup import escape

        from ds_profiler.report.fitted import FittedTable
    except ImportError as error:
        raise MissingExtra("rich_table", "rich", "rich") from error
    rows: list[tuple[str, ...]] = []
    for depth, module in profile.root.walk():
        if max_depth is not None and depth > max_depth:
            continue
        name = f"{'  ' * depth}{escape(module.label or module.kind)}"
        if module.shared_with is not None:
            rows.append((f"{name} [dim]shared with {escape(module.shared_with)}[/dim]",))
        else:
            kind = f" [dim]{escape(module.kind)}[/dim]" if depth else ""
            rows.append((name + kind, *_cells(module, profile.root.forward.flops)))
    lacking = [f"{name}, {calls} calls" for name, calls in sorted(profile.uncounted.items())]
    return FittedTable(
        title=f"{escape(profile.root.kind)} on {profile.device}",
        columns=_COLUMNS,
        rows=rows,
        dispensable=_DISPENSABLE,
        caption=f"[red]not counted: {escape('; '.join(lacking))}[/red]" if lacking else None,
    )


def _cells(module: ModuleProfile, total: int) -> tuple[str, ...]:
    cells = (
        number_to_string(module.params),
        number_to_string(module.forward.flops),
        percent(module.forward.flops, total),
        number_to_string(module.backward.flops) if module.backward.flops else "-",
        bytes_to_string(module.activation_bytes) if module.activation_bytes else "-",
        duration_to_string(module.forward_seconds) if module.forward_seconds else "-",
        duration_to_string(module.backward_seconds) if module.backward_seconds else "-",
    )
    return tuple(cell.strip() for cell in cells)
