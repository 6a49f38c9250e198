"""Train by tokens instead of by sentences, with a learning rate that follows the batch size.

deepspeed --num_gpus 2 train.py
deepspeed --num_gpus 2 train.py --pipeline-num-stages 2
"""

from __future__ import annotations

import argparse
import json
import logging
from pathlib import Path
from typing import Any

import torch
from model import Attention, FeedForward
from picture import draw
from sentences import Sentences
from torch import nn
from torch.nn.functional import l1_loss

import deepspeed
from deepspeed.runtime.data_pipeline.data_sampling.variable_batch_size_and_lr import (
    get_dataloader_and_lr_scheduler_for_variable_batch_size_deepspeed as dynamic_batches,
)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pipeline-num-stages", type=int, default=0, help="0: data parallel")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument(
        "--metrics-path", default="curriculum_output", help="where lengths are kept"
    )
    parser.add_argument("--figure", type=Path, help="draw batches, rates and losses here")
    parser.add_argument("--local_rank", type=int, default=-1, help="set by some launchers")
    return parser.parse_args(arguments)


def build_model(args: argparse.Namespace, data: Sentences) -> nn.Module:
    layers = [Attention(args.width, data.longest), FeedForward(args.width, data.longest)]
    if args.pipeline_num_stages > 1:
        from deepspeed.pipe import PipelineModule  # needs ds-pipeline

        return PipelineModule(layers=layers, num_stages=args.pipeline_num_stages, loss_fn=l1_loss)
    return nn.Sequential(*layers)


def build_config(args: argparse.Namespace) -> dict[str, Any]:
    config = json.loads((Path(__file__).parent / "ds_config.json").read_text())
    sampling = config["data_efficiency"]["data_sampling"]
    sampling["dynamic_batching"]["metrics_path"] = args.metrics_path
    return config  # type: ignore[no-any-return]


def train_batch(engine: Any, batches: Any, *, pipeline: bool) -> float:
    """One optimizer step: as many micro-batches as the configuration says; the mean loss."""
    if pipeline:
        engine.reset_activation_shape()  # every batch has its own (B, S)
        return float(engine.train_batch(data_iter=batches))
    total = 0.0
    for _ in range(engine.gradient_accumulation_steps()):
        sentences, labels = (part.to(engine.device) for part in next(batches))
        loss = l1_loss(engine(sentences), labels)
        engine.backward(loss, weight=len(labels))  # the mean over sentences, not over micro-batches
        engine.step()
        total += loss.item() / engine.gradient_accumulation_steps()
    return total


def main(arguments: list[str] | None = None) -> list[float]:
    args = parse(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.manual_seed(0)
    deepspeed.init_distributed()
    data = Sentences(args.sentences, shortest=3, longest=20, width=args.width)
    model = build_model(args, data)
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=[p for p in model.parameters() if p.requires_grad],
        config=build_config(args),
    )
    # One step of a curriculum: only sentences of 5 to 10 tokens take part.
    chosen = [i for i, length in enumerate(data.lengths) if 5 <= length <= 10]
    loader, schedule, _ = dynamic_batches(
        dataset=data,
        engine=engine,
        dataset_filter_ids=chosen,
        dataloader_collate_fn=data.batch_collate_fn,
        sample_padding_fn=data.sample_padding_fn,
        batch_seqlens_fn=data.batch_seqlens_fn,
    )
    engine.lr_scheduler = schedule
    losses: list[float] = []
    rows: list[dict[str, float]] = []
    for epoch in range(args.epochs):
        schedule.step(0)  # back to the rate of the epoch's first batch
        batches, sizes = iter(loader), loader.batch_sizes()
        for step, size in enumerate(sizes):
            rate = schedule.get_lr()[0]
            losses.append(train_batch(engine, batches, pipeline=args.pipeline_num_stages > 1))
            rows.append({"sentences": size, "lr": rate, "loss": losses[-1]})
            if engine.global_rank == 0 and step % 5 == 0:
                print(f"epoch {epoch} batch {step}: {size} sentences, lr {rate:.2e}, "
                      f"loss {losses[-1]:.4f}")  # fmt: skip
        next(batches, None)  # the loader sees its end, and plans the next epoch
    if args.figure and engine.global_rank == 0:
        draw(rows, args.figure)
    engine.destroy()
    return losses


if __name__ == "__main__":
    main()
