"""A profile as a picture: modules as bars, each as wide as its share of the work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ds_profiler import ModuleProfile, Profile

ROW = 0.42


def draw_flame(result: Profile, out: Path) -> None:
    """Draw forward and backward flops; children stand below their parent."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    depth = max(level for level, _ in result.root.walk()) + 1
    figure, axes = pyplot.subplots(figsize=(9, 0.7 + ROW * depth), layout="constrained")
    _bars(axes, result.root, begin=0.0, level=0, whole=_work(result.root))
    axes.set(xlim=(0, 1), ylim=(depth, 0), yticks=[], xlabel="share of all flops")
    axes.set_title(f"{result.root.kind}: {_work(result.root):.3g} flops")
    figure.savefig(out, dpi=80)
    pyplot.close(figure)


def _work(module: ModuleProfile) -> int:
    return module.forward.flops + module.backward.flops


def _bars(axes: Any, module: ModuleProfile, *, begin: float, level: int, whole: int) -> None:
    width = _work(module) / max(1, whole)
    colour = f"C{sum(map(ord, module.kind)) % 10}"  # one kind, one colour
    axes.barh(level, width, left=begin, height=0.94, align="edge", color=colour, edgecolor="white")
    name = module.kind if module.label.isdigit() else module.label or module.kind
    if width * 150 > len(name):  # there is room
        axes.text(begin + width / 2, level + 0.47, name, ha="center", va="center", fontsize=7)
    for child in module.children:
        _bars(axes, child, begin=begin, level=level + 1, whole=whole)
        begin += _work(child) / max(1, whole)
