"""A heat map of throughput over block size and queue depth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ds_aio.sizes import show_size
from ds_aio.tune.sweep import Point


def grid(points: Sequence[Point], kind: str) -> tuple[list[int], list[int], list[list[float]]]:
    """Block sizes, queue depths, and the best rate in GB/s of each pair over all other settings."""
    blocks = sorted({p.options.block_size for p in points})
    depths = sorted({p.options.queue_depth for p in points})
    best = [[0.0] * len(depths) for _ in blocks]
    for point in points:
        row, column = (
            blocks.index(point.options.block_size),
            depths.index(point.options.queue_depth),
        )
        rate = (point.read if kind == "read" else point.write) or 0.0
        best[row][column] = max(best[row][column], rate / 1e9)
    return blocks, depths, best


def draw(points: Sequence[Point], kinds: Sequence[str], path: Path) -> None:
    """Writes a PNG with one map for each of `kinds` (`read`, `write`). Needs matplotlib."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.5 + 5 * len(kinds), 4), layout="constrained")
    FigureCanvasAgg(figure)
    for place, kind in enumerate(kinds):
        blocks, depths, rates = grid(points, kind)
        axes = figure.add_subplot(1, len(kinds), place + 1)
        image = axes.imshow(rates, aspect="auto", cmap="viridis", origin="lower")
        axes.set_title(f"{kind}, GB/s")
        axes.set_xlabel("queue depth")
        axes.set_ylabel("block size")
        axes.set_xticks(range(len(depths)), [str(depth) for depth in depths])
        axes.set_yticks(range(len(blocks)), [show_size(block) for block in blocks])
        for row, values in enumerate(rates):
            for column, value in enumerate(values):
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", color="white")
        figure.colorbar(image, ax=axes)
    figure.savefig(path, dpi=120)
