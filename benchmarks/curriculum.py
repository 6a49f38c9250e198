"""Tokens and time to a validation loss: plain, with a sequence-length curriculum, with random-LTD.

    python benchmarks/curriculum.py plain curriculum random_ltd small_batch --out curves.json
    python benchmarks/curriculum.py --out curves.json --figure curves.png

Claim: both reach the plain run's validation loss with fewer tokens or less time. The GPT of
examples/gpt (6 layers, width 128, context 256) on Python's own sources, 8 sequences a step, one
thread, CPU seconds of the process (other work on the machine does not count). All runs start from
the same weights, see the same batches and warm up by steps; the rate decays by tokens. A curriculum
also takes more steps a token: `small_batch` is a plain run that does so too.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "gpt"))

from model import GPT, Attention, Block, GPTShape
from text import batch_at, read_text

from ds_data import (
    CurriculumScheduler,
    LTDRules,
    RandomLTDScheduler,
    TokenBudget,
    TokenDecayLR,
    attach_random_ltd,
    convert_to_random_ltd,
)

SHAPE = GPTShape(layers=6, width=128, heads=4, context=256)
BATCH, WARMUP, PEAK = 8, 20, 2e-3
SMALL = 6  # sequences of 256: about as many tokens a step as the curriculum takes on average
RUNS = ("plain", "curriculum", "random_ltd", "small_batch")


class PlacedAttention(Attention):
    """Attention whose tokens may come from anywhere: rotary angles are an argument."""

    def forward(self, hidden: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        batch, length, width = hidden.shape
        qkv = self.qkv(hidden).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        cos, sin = (part[:, None] for part in angles)
        mixed = functional.scaled_dot_product_attention(
            turn(query, cos, sin), turn(key, cos, sin), value, is_causal=True
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def turn(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


class PlacedBlock(Block):
    """A block that hands rotary angles to its attention."""

    def __init__(self, shape: GPTShape) -> None:
        super().__init__(shape)
        self.attention = PlacedAttention(shape)

    def forward(self, hidden: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        hidden = hidden + self.attention(self.norm1(hidden), angles)
        return hidden + self.feed_forward(self.norm2(hidden))


class PlacedGPT(GPT):
    """The example's GPT, with angles as a keyword of its blocks."""

    def __init__(self, shape: GPTShape) -> None:
        super().__init__(shape)
        self.angles = (self.blocks[0].attention.cos[None], self.blocks[0].attention.sin[None])
        placed = [PlacedBlock(shape) for _ in range(shape.layers)]
        for block, plain in zip(placed, self.blocks, strict=True):
            block.load_state_dict(plain.state_dict())
        self.blocks = nn.ModuleList(placed)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        hidden = self.embed(tokens)
        length = tokens.shape[1]
        angles = tuple(part[:, :length] for part in self.angles)
        for block in self.blocks:
            hidden = block(hidden, angles=angles)
        logits = self.head(self.norm(hidden))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def validate(model: nn.Module, text: Any) -> float:
    model.eval()
    losses = [
        model(*batch_at(text, step=k, rank=0, seed=99, batch=BATCH, context=SHAPE.context))
        for k in range(12)
    ]
    model.train()
    return float(torch.stack(losses).mean())


def seqlen_schedule(steps: int) -> CurriculumScheduler:
    return CurriculumScheduler(
        {
            "min_difficulty": 64,
            "max_difficulty": SHAPE.context,
            "schedule_type": "fixed_linear",
            "schedule_config": {"total_curriculum_step": steps, "difficulty_step": 8},
        }
    )


def ltd_schedule(steps: int) -> RandomLTDScheduler:
    return RandomLTDScheduler(
        {
            "total_layer_num": SHAPE.layers,
            "random_ltd_layer_num": SHAPE.layers - 2,
            "random_ltd_schedule": {
                "min_value": 96,
                "max_value": SHAPE.context,
                "schedule_config": {"require_steps": steps, "seq_per_step": 16},
            },
        }
    )


def run(kind: str, tokens: int) -> list[dict[str, float]]:
    """Train for `tokens` tokens; the curve of validation loss by tokens and CPU seconds."""
    torch.manual_seed(0)
    train_text, valid_text = read_text(None)
    model = PlacedGPT(SHAPE)
    whole_steps = tokens // (BATCH * SHAPE.context)
    lengths, kept = seqlen_schedule(whole_steps * 3 // 4), ltd_schedule(whole_steps * 3 // 4)
    if kind == "random_ltd":
        convert_to_random_ltd(model, PlacedBlock)
        attach_random_ltd(model, kept, LTDRules(sequence_names=("angles",)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.95), weight_decay=0.1)
    rate = TokenDecayLR(optimizer, decay_tokens=tokens, warmup=WARMUP, lowest=0.1)
    budget, curve, step, seconds = TokenBudget(tokens), [], 0, 0.0
    while not budget.done:
        start = time.process_time()
        length = lengths.update_difficulty(step + 1) if kind == "curriculum" else SHAPE.context
        kept.update_seq(step)
        batch = batch_at(train_text, step=step, rank=0, seed=0, batch=BATCH, context=SHAPE.context)
        rows = SMALL if kind == "small_batch" else BATCH
        model(*(part[:rows, :length] for part in batch)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        rate.step(rows * length)
        budget.add(rows * length)
        seconds += time.process_time() - start
        step += 1
        if budget.done or step % 20 == 0:
            loss = validate(model, valid_text)
            curve.append(
                {"step": step, "tokens": budget.consumed, "seconds": seconds, "loss": loss}
            )
            print(f"{kind}: step {step}, {budget.consumed:,} tokens, {seconds:.0f} s, {loss:.4f}")
    return curve


def reached(curve: list[dict[str, float]], loss: float) -> dict[str, float] | None:
    """Where the curve first is at or below `loss`, interpolated."""
    for before, after in pairwise(curve):
        if after["loss"] <= loss < before["loss"]:
            part = (before["loss"] - loss) / (before["loss"] - after["loss"])
            return {key: before[key] + part * (after[key] - before[key]) for key in before}
    return None


def table(curves: dict[str, list[dict[str, float]]]) -> str:
    goal = curves["plain"][-1]["loss"]
    lines = [
        f"Goal: the plain run's last validation loss, {goal:.4f} nats a byte.\n",
        "| run | last loss | tokens to the goal | CPU s to the goal | tokens | CPU s |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    base = curves["plain"][-1]
    for name, curve in curves.items():
        at = base if name == "plain" else reached(curve, goal)
        cells = ["not reached"] * 2
        if at is not None:
            cells = [
                f"{at['tokens']:,.0f} ({at['tokens'] / base['tokens']:.2f})",
                f"{at['seconds']:.0f} ({at['seconds'] / base['seconds']:.2f})",
            ]
        end = curve[-1]
        lines.append(
            f"| {name} | {end['loss']:.4f} | {cells[0]} | {cells[1]} |"
            f" {end['tokens']:,.0f} | {end['seconds']:.0f} |"
        )
    return "\n".join(lines)


def plot(curves: dict[str, list[dict[str, float]]], figure: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    drawing, axes = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True)
    for axis, key, label in zip(
        axes, ("tokens", "seconds"), ("tokens", "CPU seconds"), strict=True
    ):
        for name, curve in curves.items():
            axis.plot(
                [point[key] for point in curve], [point["loss"] for point in curve], label=name
            )
        axis.axhline(curves["plain"][-1]["loss"], color="grey", linewidth=0.5)
        axis.set_xlabel(label)
    axes[0].set_ylabel("validation loss, nats a byte")
    axes[0].set_yscale("log")
    axes[0].legend()
    drawing.tight_layout()
    drawing.savefig(figure, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", metavar="RUN", help=", ".join(RUNS))
    parser.add_argument("--tokens", type=int, default=640_000)
    parser.add_argument("--out", type=Path, default=Path("curves.json"), help="curves are added")
    parser.add_argument("--figure", type=Path, help="draw the curves here")
    args = parser.parse_args()
    if not set(args.runs) <= set(RUNS):
        parser.error(f"runs are {', '.join(RUNS)}")
    torch.set_num_threads(1)
    curves = json.loads(args.out.read_text()) if args.out.exists() else {}
    for kind in args.runs:
        curves[kind] = run(kind, args.tokens)
        args.out.write_text(json.dumps(curves))
    if "plain" in curves:
        print(table(curves))
    if args.figure:
        plot(curves, args.figure)


if __name__ == "__main__":
    main()
