"""A timeline as a picture: who computes what when, who is idle, and what is held meanwhile."""

from __future__ import annotations

from html import escape
from pathlib import Path

from ds_pipeline.errors import PipelineError
from ds_pipeline.simulate import Span, Timeline

KINDS = {
    "ForwardPass": ("forward", "#4C78A8"),
    "BackwardPass": ("backward", "#E45756"),
    "BackwardInput": ("backward, inputs", "#F58518"),
    "BackwardWeight": ("backward, weights", "#54A24B"),
}
"""What each kind of computation is called, and its colour."""

IDLE, HELD = "#e4e4e4", "#b9a7d6"
WIDTH, ROW, LEFT, STRIP = 1100, 34, 70, 26


def summary(timeline: Timeline, title: str) -> str:
    """One line: length, idle share, the most that a stage holds."""
    peak = max((max(number for _, number in steps) for steps in held(timeline)), default=0)
    return (
        f"{title}: {timeline.stages} stages, length {_time(timeline, timeline.length)}, "
        f"idle {timeline.bubble:.1%}, at most {peak} micro-batches held"
    )


def legend(timeline: Timeline) -> list[tuple[str, str]]:
    """What the colours of a picture mean: the kinds that occur, then what every picture has."""
    kinds = {span.kind for span in timeline.spans}
    shown = [entry for kind, entry in KINDS.items() if kind in kinds]
    if any(span.chunk for span in timeline.spans):
        shown.append(("lighter: later chunks", "#cccccc"))
    return [*shown, ("idle", IDLE), ("micro-batches held", HELD)]


def held(timeline: Timeline) -> list[list[tuple[float, int]]]:
    """For each stage the (time, micro-batches held) at which the number changes."""
    found = []
    for stage in range(timeline.stages):
        changes = [(0.0, 0)]
        for span in timeline.spans:
            if span.stage != stage:
                continue
            if span.kind == "ForwardPass":
                changes.append((span.start, 1))
            elif span.kind in ("BackwardPass", "BackwardWeight"):
                changes.append((span.stop, -1))
        number, steps = 0, []
        for time, change in sorted(changes, key=lambda entry: entry[0]):
            number += change
            steps.append((time, number))
        found.append(steps)
    return found


def shade(span: Span) -> str:
    """The colour of a span; later chunks are lighter."""
    colour = KINDS.get(span.kind, (span.kind, "#888888"))[1]
    white = min(0.6, 0.35 * span.chunk)
    parts = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(part + (255 - part) * white):02x}" for part in parts)


def draw(timeline: Timeline, path: Path, title: str) -> None:
    """Write a picture; the name says the kind: `.html` or `.png` (which needs matplotlib).

    Raises:
        PipelineError: another kind of file, or nothing to draw.
    """
    if not timeline.spans:
        raise PipelineError("there is nothing to draw: the timeline has no computation")
    if path.suffix == ".html":
        path.write_text(html(timeline, title))
    elif path.suffix == ".png":
        _png(timeline, path, title)
    else:
        raise PipelineError(f"cannot draw {path.name}: the name must end in .html or .png")


def html(timeline: Timeline, title: str) -> str:
    """A page that needs nothing else; hovering over a block tells its times."""
    scale = WIDTH / timeline.length
    body = []
    for stage, steps in enumerate(held(timeline)):
        top = stage * (ROW + STRIP + 12)
        busy = timeline.busy[stage] / timeline.length
        body.append(f'<text x="0" y="{top + 16}">stage {stage}</text>')
        body.append(f'<text x="0" y="{top + 30}" class="small">busy {busy:.0%}</text>')
        body.append(f'<rect x="{LEFT}" y="{top}" width="{WIDTH}" height="{ROW}" class="idle"/>')
        spans = [span for span in timeline.spans if span.stage == stage]
        body += [_block(span, timeline, scale, top) for span in spans]
        body.append(_strip(steps, timeline, scale, top + ROW + 2))
    keys = "".join(
        f'<span><i style="background:{colour}"></i>{name}</span>'
        for name, colour in legend(timeline)
    )
    height = timeline.stages * (ROW + STRIP + 12)
    return _PAGE.format(
        title=escape(title),
        summary=escape(summary(timeline, title)),
        legend=keys,
        width=LEFT + WIDTH + 40,
        height=height,
        body="\n".join(body),
    )


def _block(span: Span, timeline: Timeline, scale: float, top: float) -> str:
    x, width = LEFT + span.start * scale, max((span.stop - span.start) * scale, 0.5)
    name = KINDS.get(span.kind, (span.kind, ""))[0]
    chunk = f", chunk {span.chunk}" if span.chunk else ""
    start, stop = _time(timeline, span.start), _time(timeline, span.stop)
    tip = f"{name} of micro-batch {span.micro_batch}{chunk}: {start} to {stop}"
    label = ""
    if width > 14:
        middle = x + width / 2
        label = f'<text x="{middle:.1f}" y="{top + 21}" class="block">{span.micro_batch}</text>'
    return (
        f'<g><title>{escape(tip)}</title><rect x="{x:.1f}" y="{top}" width="{width:.1f}" '
        f'height="{ROW}" fill="{shade(span)}" stroke="#fff" stroke-width="0.7"/>{label}</g>'
    )


def _time(timeline: Timeline, value: float) -> str:
    return f"{value * 1e3:.1f} ms" if timeline.unit == "s" else f"{value:.4g}"


def _strip(steps: list[tuple[float, int]], timeline: Timeline, scale: float, top: float) -> str:
    """What a stage holds over time, as a filled step curve."""
    most = max((number for found in held(timeline) for _, number in found), default=1) or 1
    points, level = [f"{LEFT},{top + STRIP}"], 0
    for time, number in steps:
        x = LEFT + time * scale
        points.append(f"{x:.1f},{top + STRIP - STRIP * level / most:.1f}")
        points.append(f"{x:.1f},{top + STRIP - STRIP * number / most:.1f}")
        level = number
    points.append(f"{LEFT + WIDTH},{top + STRIP}")
    peak = max(number for _, number in steps)
    return (
        f'<polygon points="{" ".join(points)}" class="held"/>'
        f'<text x="{LEFT + WIDTH + 6}" y="{top + STRIP - 6}" class="small">&#8804; {peak}</text>'
    )


def _png(timeline: Timeline, path: Path, title: str) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch
    except ImportError as error:
        raise PipelineError("a .png needs matplotlib: pip install ds-pipeline[draw]") from error
    stages, length = timeline.stages, timeline.length
    figure = Figure(figsize=(11, 1.3 + 0.72 * stages), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    curves = held(timeline)
    most = max((number for steps in curves for _, number in steps), default=1) or 1
    for stage, steps in enumerate(curves):
        axes.barh(stage, length, height=0.6, color=IDLE)
        base, room = stage + 0.6, 0.26
        times, numbers = zip(*steps, (length, 0), strict=False)
        heights = [base - room * number / most for number in numbers]
        axes.fill_between(times, base, heights, step="post", color=HELD, lw=0)
        peak = f"{max(numbers)} held"
        axes.text(length * 1.005, base, peak, va="bottom", fontsize=8, color="#666666")
    for span in timeline.spans:
        width = span.stop - span.start
        axes.barh(
            span.stage, width, left=span.start, height=0.6, color=shade(span),
            edgecolor="white", lw=0.6,
        )  # fmt: skip
        if width > length / 80:
            axes.text(
                span.start + width / 2, span.stage, str(span.micro_batch),
                ha="center", va="center", color="white", fontsize=8,
            )  # fmt: skip
    busy = [f"stage {s}\n{b / length:.0%} busy" for s, b in enumerate(timeline.busy)]
    axes.set_yticks(range(stages), busy, fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(stages - 0.3, -0.4)
    axes.set_xlim(0, length)
    axes.spines[["top", "left", "right"]].set_visible(False)
    if timeline.unit == "s":
        axes.xaxis.set_major_formatter(lambda seconds, _: f"{seconds * 1e3:.0f}")
    axes.set_xlabel("ms" if timeline.unit == "s" else "time", fontsize=9)
    axes.set_title(summary(timeline, title), fontsize=11, loc="left")
    patches = [Patch(color=colour, label=name) for name, colour in legend(timeline)]
    figure.legend(
        handles=patches, loc="outside lower center", ncols=len(patches), fontsize=8, frameon=False
    )
    figure.savefig(path, dpi=90)


_PAGE = """<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 14px system-ui, sans-serif; margin: 24px; color: #222; }}
text {{ font: 12px system-ui, sans-serif; fill: #222; }}
.small {{ font-size: 10px; fill: #666; }}
.block {{ fill: #fff; text-anchor: middle; font-size: 11px; }}
.idle {{ fill: #e8e8e8; }}
.held {{ fill: #b9a7d6; opacity: 0.8; }}
span {{ margin-right: 18px; }}
i {{ display: inline-block; width: 12px; height: 12px; margin-right: 6px; }}
</style></head><body>
<h3>{summary}</h3>
<p>{legend}</p>
<svg width="{width}" height="{height}">
{body}
</svg></body></html>
"""
