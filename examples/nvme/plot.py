"""Draw what tensors.py and offload.py found.

python plot.py runs --out runs/nvme.png
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path


def draw(folder: Path, out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
    rates = json.loads((folder / "rates.json").read_text())
    colours = ["C0" if "ds_aio" in name else "C7" for name in rates]
    left.barh(list(rates), list(rates.values()), color=colours)
    left.invert_yaxis()
    left.set(xlabel="GB/s", title="a state dict to the disk and back")
    left.grid(alpha=0.3, axis="x")
    runs = {
        name: json.loads((folder / f"{name}.json").read_text())
        for name in ("none", "cpu", "nvme")
        if (folder / f"{name}.json").exists()
    }
    middle.bar(list(runs), [run["peak_mebibytes"] for run in runs.values()])
    middle.set(ylabel="MiB", title="growth of peak memory", xlabel="offload_optimizer.device")
    right.bar(list(runs), [run["seconds"] for run in runs.values()])
    right.set(ylabel="seconds", title="time of a step", xlabel="offload_optimizer.device")
    if len({tuple(run["losses"]) for run in runs.values()}) == 1:
        print("the losses of all runs are the same to the last bit")
    figure.savefig(out, dpi=85)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=Path("nvme.png"))
    args = parser.parse_args()
    draw(args.folder, args.out)
