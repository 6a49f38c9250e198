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

WIDTH, ROW, LEFT, STRIP = 1100, 34, 70, 26


def summary(timeline: Timeline, title: str) -> str:
    """One line: length, idle share, the most that a stage holds."""
    peak = max((max(number for _, number in steps) for steps in held(timeline)), default=0)
    return (
        f"{title}: {timeline.stages} stages, length {timeline.length:.4g}, "
        f"idle {timeline.bubble:.1%}, at most {peak} micro-batches held"
    )


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
        body += [_block(span, scale, top) for span in timeline.spans if span.stage == stage]
        body.append(_strip(steps, timeline, scale, top + ROW + 2))
    kinds = {span.kind for span in timeline.spans}
    legend = "".join(
        f'<span><i style="background:{colour}"></i>{name}</span>'
        for kind, (name, colour) in KINDS.items()
        if kind in kinds
    )
    height = timeline.stages * (ROW + STRIP + 12)
    return _PAGE.format(
        title=escape(title),
        summary=escape(summary(timeline, title)),
        legend=legend,
        width=LEFT + WIDTH + 40,
        height=height,
        body="\n".join(body),
    )


def _block(span: Span, scale: float, top: float) -> str:
    x, width = LEFT + span.start * scale, max((span.stop - span.start) * scale, 0.5)
    name = KINDS.get(span.kind, (span.kind, ""))[0]
    chunk = f", chunk {span.chunk}" if span.chunk else ""
    tip = f"{name} of micro-batch {span.micro_batch}{chunk}: {span.start:.4g} to {span.stop:.4g}"
    label = ""
    if width > 14:
        middle = x + width / 2
        label = f'<text x="{middle:.1f}" y="{top + 21}" class="block">{span.micro_batch}</text>'
    return (
        f'<g><title>{escape(tip)}</title><rect x="{x:.1f}" y="{top}" width="{width:.1f}" '
        f'height="{ROW}" fill="{shade(span)}" stroke="#fff" stroke-width="0.7"/>{label}</g>'
    )


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
    figure = Figure(figsize=(14, 1.6 + 0.75 * timeline.stages), layout="constrained")
    FigureCanvasAgg(figure)
    work, memory = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1.4])
    for span in timeline.spans:
        width = span.stop - span.start
        work.barh(span.stage, width, left=span.start, color=shade(span), edgecolor="white", lw=0.5)
        if width > timeline.length / 90:
            work.text(
                span.start + width / 2, span.stage, str(span.micro_batch),
                ha="center", va="center", color="white", fontsize=7,
            )  # fmt: skip
    busy = [f"stage {s}\nbusy {b / timeline.length:.0%}" for s, b in enumerate(timeline.busy)]
    work.set_yticks(range(timeline.stages), busy)
    work.invert_yaxis()
    work.set_facecolor("#e8e8e8")
    work.set_title(summary(timeline, title), fontsize=11)
    kinds = {span.kind for span in timeline.spans}
    patches = [Patch(color=c, label=name) for kind, (name, c) in KINDS.items() if kind in kinds]
    work.legend(handles=[*patches, Patch(color="#e8e8e8", label="idle")], loc="upper left",
                bbox_to_anchor=(1.0, 1.0), fontsize=8)  # fmt: skip
    for stage, steps in enumerate(held(timeline)):
        times, numbers = zip(*steps, strict=True)
        memory.step(times, numbers, where="post", label=f"stage {stage}")
    memory.set_ylabel("micro-batches held")
    memory.set_xlabel("time")
    memory.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    memory.set_xlim(0, timeline.length)
    figure.savefig(path, dpi=110)


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
<p>{legend}<span><i style="background:#e8e8e8"></i>idle</span>
<span><i style="background:#b9a7d6"></i>micro-batches held</span></p>
<svg width="{width}" height="{height}">
{body}
</svg></body></html>
"""
