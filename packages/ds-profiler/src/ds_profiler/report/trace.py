"""A profile as a Chrome trace (chrome://tracing, Perfetto)."""

from __future__ import annotations

from typing import Any

from ds_profiler.result import ModuleProfile, Profile


def chrome_trace(profile: Profile) -> dict[str, Any]:
    """Nested spans of the modules: forward in one row, backward in another.

    A module's calls are drawn as one span, at its place in the order of the model: the widths are
    measured, the gaps between are the module's own work. Where no time was measured, a
    microsecond stands for 1e6 flops.
    """
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "tid": row, "name": "thread_name", "args": {"name": name}}
        for row, name in enumerate(("forward", "backward"))
    ]
    timed = profile.root.forward_seconds > 0
    with profile.room():
        for row, phase in enumerate(("forward", "backward")):
            _spans(profile.root, phase, row, 0.0, timed, events)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _width(module: ModuleProfile, phase: str, timed: bool) -> float:
    """Microseconds."""
    if timed:
        return 1e6 * (module.forward_seconds if phase == "forward" else module.backward_seconds)
    return (module.forward if phase == "forward" else module.backward).flops / 1e6


def _spans(
    module: ModuleProfile,
    phase: str,
    row: int,
    begin: float,
    timed: bool,
    events: list[dict[str, Any]],
) -> None:
    width = _width(module, phase, timed)
    work = module.forward if phase == "forward" else module.backward
    if width <= 0:
        return
    events.append(
        {
            "ph": "X",
            "pid": 0,
            "tid": row,
            "name": module.name or module.kind,
            "cat": module.kind,
            "ts": begin,
            "dur": width,
            "args": {"params": module.params, "macs": work.macs, "flops": work.flops},
        }
    )
    children = module.children if phase == "forward" else tuple(reversed(module.children))
    widths = [_width(child, phase, timed) for child in children]
    shrink = min(1.0, width / sum(widths)) if sum(widths) > 0 else 1.0
    for child, child_width in zip(children, widths, strict=True):
        _spans(child, phase, row, begin, timed, events)
        begin += child_width * shrink
