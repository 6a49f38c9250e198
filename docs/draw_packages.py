"""Draws docs/packages.svg: the packages and which may import which."""

from __future__ import annotations

from pathlib import Path

LAYERS = [
    [("deepspeed", "JSON config, launcher, the names programs use")],
    [("ds-zero", "ZeRO 1-3, offload"), ("ds-pipeline", "pipeline schedules, engine")],
    [("ds-core", "engine, precision, checkpoints, contracts")],
    [
        ("ds-kernels", "fused optimizers"),
        ("ds-aio", "tensors to disk"),
        ("ds-data", "batching, curriculum"),
        ("ds-profiler", "flops, timers, monitors"),
    ],
]
WIDTH, HEIGHT, GAP, ROW = 880, 56, 20, 100
COLOURS = ["#2f5d8a", "#3b7a57", "#8a5a2f", "#6b6b7b"]


def draw() -> str:
    """The picture as SVG text."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {ROW * 4 + 10}" '
        'font-family="sans-serif" text-anchor="middle">',
        f'<rect width="{WIDTH}" height="{ROW * 4 + 10}" fill="white"/>',
        '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#999"/></marker>',
    ]
    centres: dict[str, tuple[float, float]] = {}
    boxes = []
    for row, layer in enumerate(LAYERS):
        width = 300 if len(layer) < 3 else (WIDTH - 40 - GAP * 3) / 4
        total = width * len(layer) + GAP * (len(layer) - 1)
        for column, (name, what) in enumerate(layer):
            x = (WIDTH - total) / 2 + column * (width + GAP)
            y = 15 + row * ROW
            centres[name] = (x + width / 2, y)
            boxes.append(
                f'<rect x="{x}" y="{y}" width="{width}" height="{HEIGHT}" rx="7" '
                f'fill="{COLOURS[row]}"/><text x="{x + width / 2}" y="{y + 24}" fill="white" '
                f'font-size="16" font-weight="bold">{name}</text><text x="{x + width / 2}" '
                f'y="{y + 43}" fill="white" font-size="12">{what}</text>'
            )
    arrows = [("deepspeed", "ds-zero"), ("deepspeed", "ds-pipeline"), ("ds-zero", "ds-core")]
    arrows += [("ds-pipeline", "ds-core"), ("deepspeed", "ds-core")]
    for source, target in arrows:
        (x1, y1), (x2, y2) = centres[source], centres[target]
        parts.append(
            f'<line x1="{x1}" y1="{y1 + HEIGHT}" x2="{x2}" y2="{y2 - 2}" stroke="#999" '
            'stroke-width="2" marker-end="url(#arrow)"/>'
        )
    note = "the four below stand alone; deepspeed finds them through entry points"
    parts.append(
        f'<text x="{WIDTH / 2}" y="{15 + 2 * ROW + HEIGHT + 28}" fill="#666" font-size="13">'
        f"{note}</text>"
    )
    return "\n".join([*parts, *boxes, "</svg>\n"])


if __name__ == "__main__":
    Path(__file__).with_name("packages.svg").write_text(draw())
