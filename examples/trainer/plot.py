"""Draw the losses of runs beside each other.

python plot.py runs/plain runs/deepspeed --out runs/losses.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def draw(folders: list[Path], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.6), layout="constrained")
    for number, folder in enumerate(folders):
        rows = json.loads((folder / "losses.json").read_text())
        axes.plot(
            [row["step"] for row in rows],
            [row["loss"] for row in rows],
            label=folder.name,
            linestyle="-" if number == 0 else "--",
            linewidth=4 if number == 0 else 1.5,
            alpha=0.5 if number == 0 else 1,
        )
    axes.set(xlabel="step", ylabel="loss (nats a byte)", title="Fine-tuning on these pages")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(out, dpi=90)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=Path("losses.png"))
    args = parser.parse_args()
    draw(args.folders, args.out)
