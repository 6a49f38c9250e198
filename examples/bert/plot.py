"""Draw the losses of runs beside each other.

python plot.py runs/plain runs/adam runs/lamb --out runs/losses.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def draw(folders: list[Path], out: Path) -> None:
    """Loss by samples seen; the second of two equal curves is dashed, so that both show."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for number, folder in enumerate(folders):
        rows = json.loads((folder / "losses.json").read_text())
        axes.plot(
            [row["samples"] for row in rows],
            [row["loss"] for row in rows],
            label=f"{folder.name} ({rows[0]['samples']} rows a step)",
            linestyle="--" if number == 1 else "-",
            linewidth=3.5 if number == 0 and len(folders) > 1 else 1.5,
            alpha=0.5 if number == 0 and len(folders) > 1 else 1,
        )
    axes.set(xlabel="rows seen", ylabel="loss (nats a masked byte)", title="Masked bytes")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(out, dpi=90)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=Path("losses.png"))
    args = parser.parse_args()
    draw(args.folders, args.out)
