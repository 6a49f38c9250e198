"""A profile as a table for terminals, with the library rich."""

from __future__ import annotations

from typing import Any

from ds_profiler.errors import MissingExtra
from ds_profiler.result import Profile
from ds_profiler.units import bytes_to_string, duration_to_string, number_to_string, percent


def rich_table(profile: Profile, *, max_depth: int | None = None) -> Any:
    """A `rich.table.Table` of the module tree (`rich.print(rich_table(profile))`).

    Args:
        profile: what to show.
        max_depth: deepest level to list; None lists all.
    """
    try:
        from rich.markup import escape
        from rich.table import Table
    except ImportError as error:
        raise MissingExtra("rich_table", "rich", "rich") from error
    table = Table(title=f"{escape(profile.root.kind)} on {profile.device}")
    table.add_column("module")
    for name in ("params", "fwd flops", "%", "bwd flops", "activations", "fwd", "bwd"):
        table.add_column(name, justify="right")
    total = profile.root.forward.flops
    for depth, module in profile.root.walk():
        if max_depth is not None and depth > max_depth:
            continue
        if module.shared_with is not None:
            table.add_row(
                f"{'  ' * depth}{escape(module.label)} "
                f"[dim]shared with {escape(module.shared_with)}[/dim]"
            )
            continue
        kind = f" [dim]{escape(module.kind)}[/dim]" if depth else ""
        table.add_row(
            f"{'  ' * depth}{escape(module.label or module.kind)}{kind}",
            number_to_string(module.params),
            number_to_string(module.forward.flops),
            percent(module.forward.flops, total),
            number_to_string(module.backward.flops) if module.backward.flops else "-",
            bytes_to_string(module.activation_bytes) if module.activation_bytes else "-",
            duration_to_string(module.forward_seconds) if module.forward_seconds else "-",
            duration_to_string(module.backward_seconds) if module.backward_seconds else "-",
        )
    for name, calls in sorted(profile.uncounted.items()):
        table.add_row(f"[red]not counted: {name}, {calls} calls[/red]")
    return table
