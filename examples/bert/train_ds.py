"""Pretrain BERT with `deepspeed.initialize`: train.py, changed where it says `deepspeed`.

deepspeed --num_gpus 2 train_ds.py --deepspeed \
    --deepspeed_config deepspeed_bsz64_adam_config.json --output_dir runs/adam
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from masked_text import MaskedText
from network import BertMultiTask
from utils import Losses, get_argument_parser, prepare_optimizer_parameters

import deepspeed


def get_arguments() -> argparse.Namespace:
    parser = get_argument_parser()
    parser.add_argument("--local_rank", type=int, default=-1, help="set by the launcher")
    # Include DeepSpeed configuration arguments
    parser = deepspeed.add_config_arguments(parser)
    args = parser.parse_args()
    return args


def prepare_model_optimizer(args: argparse.Namespace) -> tuple[BertMultiTask, Any]:
    model = BertMultiTask(args)
    optimizer_parameters = prepare_optimizer_parameters(args, model)
    model.network, optimizer, _, _ = deepspeed.initialize(
        args=args,
        model=model.network,
        model_parameters=optimizer_parameters,
        dist_init_required=False,
    )
    return model, optimizer


def checkpoint_model(path: Path, model: Any, step: int) -> None:
    model.network.save_checkpoint(path, f"step{step}", {"last_global_step": step})


def load_training_checkpoint(path: Path, model: Any) -> int:
    _, state = model.network.load_checkpoint(path)
    return int(state["last_global_step"])


def train(args: argparse.Namespace) -> list[float]:
    deepspeed.init_distributed()
    model, _ = prepare_model_optimizer(args)
    text = MaskedText(args.data, length=args.max_seq_length, seed=args.seed)
    losses, first = Losses(args, write=dist.get_rank() == 0), 0
    if args.resume:
        first = load_training_checkpoint(args.output_dir, model)
        losses.start_at(first)
    engine, rank, world = model.network, dist.get_rank(), dist.get_world_size()
    accumulation, rows = engine.gradient_accumulation_steps(), engine.train_batch_size()
    micro = engine.train_micro_batch_size_per_gpu()
    for step in range(first, args.max_steps):
        total = torch.zeros((), device=engine.device)
        lr = engine.get_lr()[0]
        for number in range(accumulation):
            begin = (number * world + rank) * micro
            batch = text.batch(step, rows, slice(begin, begin + micro))
            loss = model.network(*(part.to(engine.device) for part in batch))
            model.network.backward(loss)
            model.network.step()
            total += loss.detach() / accumulation
        dist.all_reduce(total)
        losses.add(step + 1, samples=(step + 1) * rows, loss=total.item() / world, lr=lr)
        if step + 1 == args.max_steps or (args.ckpt_steps and (step + 1) % args.ckpt_steps == 0):
            checkpoint_model(args.output_dir, model, step + 1)
    model.network.eval()
    with torch.no_grad():
        batch = text.validation(64)
        losses.close(model.network(*(part.to(engine.device) for part in batch)).item())
    dist.destroy_process_group()
    return [row["loss"] for row in losses.rows]


if __name__ == "__main__":
    train(get_arguments())
