"""What happened in a run, step by step: JSON lines, TensorBoard events, a picture.

python history.py runs/plain runs/seqlen --out runs/seqlen.png     compare runs by tokens
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any


class History:
    """Figures by step in `metrics.jsonl` and `events/`; only the writing rank keeps any."""

    def __init__(self, folder: Path, *, write: bool) -> None:
        self.file, self.events = folder / "metrics.jsonl", folder / "events"
        self._write = write
        self._board: Any = None

    def add(self, step: int, **values: float) -> None:
        """Append a line and the same figures as TensorBoard scalars."""
        if not self._write:
            return
        with self.file.open("a") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self.events))
        for name, value in values.items():
            self._board.add_scalar(name, value, step)

    def clear(self) -> None:
        """Forget an earlier run in the same folder."""
        if self._write:
            self.file.unlink(missing_ok=True)
            shutil.rmtree(self.events, ignore_errors=True)

    def cut(self, step: int) -> None:
        """Forget what an interrupted run wrote after its last checkpoint."""
        if self._write and self.file.exists():
            kept = [row for row in read_rows(self.file) if row["step"] <= step]
            self.file.write_text("".join(json.dumps(row) + "\n" for row in kept))

    def first_and_last(self, name: str) -> tuple[float, float]:
        """The first and the last value of a figure."""
        values = [row[name] for row in read_rows(self.file) if name in row]
        return values[0], values[-1]

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def read_rows(file: Path) -> list[dict[str, float]]:
    """The lines of a metrics file; a last line cut short by a kill is left out."""
    rows = []
    for line in file.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return rows


def plot_history(folder: Path) -> Path:
    """Draw training and validation loss over steps into `loss.png`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = read_rows(folder / "metrics.jsonl")
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for name, label, style in (
        ("loss", "training", {"linewidth": 1.0, "alpha": 0.7}),
        ("valid_loss", "validation", {"linewidth": 2.0, "marker": "o"}),
    ):
        points = [(row["step"], row[name]) for row in rows if name in row]
        axes.plot(*zip(*points, strict=True), label=label, **style)
    axes.set(xlabel="step", ylabel="loss (nats a byte)", title="Byte-level GPT")
    axes.grid(alpha=0.3)
    axes.legend()
    path = folder / "loss.png"
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def plot_by_tokens(folders: list[Path], out: Path) -> None:
    """Draw validation loss, and the length of sequences, by tokens seen; a line a run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for folder in folders:
        rows = read_rows(folder / "metrics.jsonl")
        for axes, name, marker in ((left, "valid_loss", "o"), (right, "seqlen", "")):
            points = [(row["tokens"] / 1000, row[name]) for row in rows if name in row]
            axes.plot(*zip(*points, strict=True), marker=marker, markersize=3, label=folder.name)
    left.set(xlabel="thousand tokens seen", ylabel="validation loss (nats a byte)")
    right.set(xlabel="thousand tokens seen", ylabel="bytes of a sequence")
    for axes in (left, right):
        axes.grid(alpha=0.3, which="both")
        axes.legend()
    figure.savefig(out, dpi=90)
    pyplot.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare runs by the tokens they saw.")
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=Path("seqlen.png"))
    chosen = parser.parse_args()
    plot_by_tokens(chosen.folders, chosen.out)
