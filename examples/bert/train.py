"""Pretrain BERT in plain PyTorch, on one device.

python train.py --output_dir runs/plain
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from masked_text import MaskedText
from network import BertMultiTask
from utils import Losses, get_argument_parser, prepare_optimizer_parameters


def get_arguments() -> argparse.Namespace:
    parser = get_argument_parser()
    args = parser.parse_args()
    return args


def warmup_exp_decay_exp(step: int, total: int) -> float:
    """A power up over the first tenth, then 0.9 for every twelfth of the steps."""
    end = 0.1 * total
    return (step / end) ** 2 if step < end else 0.9 ** ((step - end) / (total / 12))


def prepare_model_optimizer(args: argparse.Namespace) -> tuple[BertMultiTask, Any, Any]:
    model = BertMultiTask(args)
    optimizer_parameters = prepare_optimizer_parameters(args, model)
    optimizer = torch.optim.AdamW(optimizer_parameters, lr=args.learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: warmup_exp_decay_exp(step, args.schedule_steps)
    )
    return model, optimizer, schedule


def checkpoint_model(path: Path, model: Any, optimizer: Any, schedule: Any, step: int) -> None:
    path.mkdir(parents=True, exist_ok=True)
    state = {"last_global_step": step, "network": model.network.state_dict()}
    state |= {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    torch.save(state, path / "checkpoint.pt")


def load_training_checkpoint(path: Path, model: Any, optimizer: Any, schedule: Any) -> int:
    state = torch.load(path / "checkpoint.pt", weights_only=True)
    model.network.load_state_dict(state["network"])
    optimizer.load_state_dict(state["optimizer"])
    schedule.load_state_dict(state["schedule"])
    return int(state["last_global_step"])


def train(args: argparse.Namespace) -> list[float]:
    model, optimizer, schedule = prepare_model_optimizer(args)
    text = MaskedText(args.data, length=args.max_seq_length, seed=args.seed)
    losses, first = Losses(args), 0
    if args.resume:
        first = load_training_checkpoint(args.output_dir, model, optimizer, schedule)
        losses.start_at(first)
    accumulation, rows = args.gradient_accumulation_steps, args.train_batch_size
    micro = rows // accumulation
    for step in range(first, args.max_steps):
        total = 0.0
        for number in range(accumulation):
            part = slice(number * micro, (number + 1) * micro)
            tokens, labels = text.batch(step, rows, part)
            loss = model.network(tokens, labels)
            (loss / accumulation).backward()
            total += loss.item() / accumulation
        lr = schedule.get_last_lr()[0]
        torch.nn.utils.clip_grad_norm_(model.network.parameters(), args.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.add(step + 1, samples=(step + 1) * rows, loss=total, lr=lr)
        if step + 1 == args.max_steps or (args.ckpt_steps and (step + 1) % args.ckpt_steps == 0):
            checkpoint_model(args.output_dir, model, optimizer, schedule, step + 1)
    model.network.eval()
    with torch.no_grad():
        losses.close(model.network(*text.validation(64)).item())
    return [row["loss"] for row in losses.rows]


if __name__ == "__main__":
    train(get_arguments())
