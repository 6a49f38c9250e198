"""What a run did, drawn: the size of each batch, the learning rate that follows it, the loss."""

from __future__ import annotations

from pathlib import Path


def draw(rows: list[dict[str, float]], out: Path) -> None:
    """One dot a batch for sizes and rates, a line for losses."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    numbers = range(len(rows))
    left.scatter(numbers, [row["sentences"] for row in rows], s=6)
    left.set(xlabel="batch", title="sentences of a batch")
    middle.scatter([row["sentences"] for row in rows], [row["lr"] for row in rows], s=6)
    middle.set(xlabel="sentences", title="learning rate")
    right.plot(numbers, [row["loss"] for row in rows])
    right.set(xlabel="batch", title="loss")
    for axes in (left, middle, right):
        axes.grid(alpha=0.3)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=85)
    pyplot.close(figure)
