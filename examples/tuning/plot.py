"""Draw a range test, with the rates it suggests, or schedules beside each other.

python plot.py range_test runs/lrrt --out runs/range_test.png
python plot.py schedules runs/fixed runs/one_cycle --out runs/one_cycle.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

TITLES = {"lr": "learning rate", "momentum": "momentum", "valid_loss": "validation loss"}
SMOOTHING = 0.9
MARGIN = 4
"""How far the cycle's highest rate stays below that of the lowest loss."""
SPAN = 10
"""Highest to lowest rate of the cycle."""


def read(folder: Path) -> list[dict[str, float]]:
    return json.loads((folder / "history.json").read_text())  # type: ignore[no-any-return]


def smooth(losses: list[float]) -> list[float]:
    """The exponential mean, without the bias of its start."""
    mean, result = 0.0, []
    for number, loss in enumerate(losses, start=1):
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        result.append(mean / (1 - SMOOTHING**number))
    return result


def suggest(rows: list[dict[str, float]]) -> tuple[float, float]:
    """(cycle_min_lr, cycle_max_lr): some way below the rate where the loss is lowest."""
    losses = smooth([row["loss"] for row in rows])
    highest = rows[losses.index(min(losses))]["lr"] / MARGIN
    return highest / SPAN, highest


def draw_range_test(folder: Path, out: Path) -> None:
    rows = read(folder)
    low, high = suggest(rows)
    figure, (left, right) = _panels(2)
    rates, losses = [row["lr"] for row in rows], [row["loss"] for row in rows]
    left.plot(rates, losses, alpha=0.3)
    left.plot(rates, smooth(losses), color="C0")
    left.axvspan(low, high, color="C2", alpha=0.2, label=f"suggested: {low:.1e} to {high:.1e}")
    left.set(xscale="log", xlabel="learning rate", ylabel="training loss", title="Range test")
    left.legend(loc="lower left")
    right.plot([row["step"] for row in rows], rates)
    right.set(xlabel="step", ylabel="learning rate")
    figure.savefig(out, dpi=90)
    print(f"--cycle_min_lr {low:.1e} --cycle_max_lr {high:.1e}")


def draw_schedules(folders: list[Path], out: Path) -> None:
    figure, panels = _panels(3)
    for folder in folders:
        rows = read(folder)
        for axes, name in zip(panels, ("lr", "momentum", "valid_loss"), strict=True):
            points = [(row["step"], row[name]) for row in rows if name in row]
            axes.plot(*zip(*points, strict=True), label=folder.name)
            axes.set(xlabel="step", title=TITLES[name])
    panels[2].legend()
    figure.savefig(out, dpi=90)
    for folder in folders:
        print(f"{folder.name}: validation loss {read(folder)[-1]['valid_loss']:.4f}")


def _panels(count: int) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, count, figsize=(4.2 * count, 3.4), layout="constrained")
    for axes in panels:
        axes.grid(alpha=0.3)
    return figure, panels


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("range_test", "schedules"))
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=Path("tuning.png"))
    args = parser.parse_args()
    if args.what == "range_test":
        draw_range_test(args.folders[0], args.out)
    else:
        draw_schedules(args.folders, args.out)
