"""Train a small GPT in stages, see what every stage did when, and resume with other stages.

deepspeed --num_gpus 2 train.py --stages 2
deepspeed --num_gpus 4 train.py --stages 4 --schedule zb-h1 --resume
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import deepspeed
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from ds_pipeline.draw import draw, summary
from ds_pipeline.recording import write_recording

VOCABULARY, WIDTH, HEADS, CONTEXT, BLOCKS = 256, 96, 4, 64, 6


class Embedding(nn.Module):
    """Bytes and their places."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        nn.init.normal_(self.tokens.weight, std=0.02)  # it is the output layer, too
        nn.init.normal_(self.places.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        return self.tokens(text) + self.places.weight[: text.shape[1]]


class Block(nn.Module):
    """Attention and a feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        parts = self.mix(self.norm1(hidden)).chunk(3, dim=-1)
        query, key, value = (
            part.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2) for part in parts
        )
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(seen.transpose(1, 2).flatten(2))
        return hidden + self.down(nn.functional.gelu(self.up(self.norm2(hidden))))


def as_head(embedding: Embedding, hidden: Tensor) -> Tensor:
    """The embedding of tokens, used once more as the output layer."""
    return hidden @ embedding.tokens.weight.t()


def loss_fn(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def layers() -> list[Any]:
    """The whole model as a list; a rank builds its stage of it."""
    ties = ["tokens.weight"]
    return [
        TiedLayerSpec("embed", Embedding, tied_weight_attr=ties),
        *(LayerSpec(Block) for _ in range(BLOCKS)),
        LayerSpec(nn.LayerNorm, WIDTH),
        TiedLayerSpec("embed", Embedding, tied_weight_attr=ties, forward_fn=as_head),
    ]


def micro_batches(
    text: Tensor, step: int, count: int, rows: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """A function of the step, so that a resumed run sees what it would have seen."""
    generator = torch.Generator().manual_seed(step)
    for _ in range(count):
        starts = torch.randint(len(text) - CONTEXT - 1, (rows,), generator=generator)
        pieces = torch.stack([text[start : start + CONTEXT + 1] for start in starts.tolist()])
        yield pieces[:, :-1], pieces[:, 1:]


def main(arguments: list[str] | None = None) -> list[float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--local_rank", type=int, default=-1, help="set by some launchers")
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING)
    deepspeed.init_distributed()
    module = PipelineModule(
        layers(),
        num_stages=args.stages,
        loss_fn=loss_fn,
        seed_layers=True,
        chunks=2 if args.schedule == "interleaved" else 1,
    )
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 8,
        "optimizer": {"type": "AdamW", "params": {"lr": 2e-3}},
        "pipeline": {"schedule": args.schedule, "record": True},
    }
    engine, *_ = deepspeed.initialize(model=module, config=config)
    if args.resume:
        engine.load_checkpoint(args.out)
    text = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8)
    losses = []
    for step in range(engine.global_steps, engine.global_steps + args.steps):
        loss = engine.train_batch(micro_batches(text.long(), step, 8, 4))
        losses.append(loss.item())
        if engine.global_rank == 0 and step % 10 == 0:
            print(f"step {step}: loss {losses[-1]:.4f}")
        timeline = engine.recorded()
    engine.save_checkpoint(args.out)
    if engine.global_rank == 0:
        write_recording(timeline, args.out / f"{args.schedule}.json")
        draw(timeline, args.out / f"{args.schedule}.html", f"the last step under {args.schedule}")
        print(summary(timeline, f"the last step under {args.schedule}"))
    engine.destroy()
    return losses


if __name__ == "__main__":
    main()
