"""Train a small GPT with the learning-rate schedule of the config or of the command line.

deepspeed --num_gpus 2 train.py --deepspeed_config ds_config_lrrt.json --out runs/lrrt
deepspeed --num_gpus 2 train.py --lr_schedule OneCycle --cycle_min_lr 1e-3 --cycle_max_lr 1e-2 \
    --cycle_first_step_size 150 --out runs/one_cycle
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import deepspeed
from deepspeed.runtime.lr_schedules import get_config_from_args

sys.path.append(str(Path(__file__).resolve().parents[1] / "gpt"))
from model import GPT, GPTShape
from text import batch_at, read_text

HERE = Path(__file__).resolve().parent


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "runs" / "fixed", help="results folder")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--valid-every", type=int, default=25, help="steps between validations")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--data", type=Path, help="file or folder; default: Python's own sources")
    parser.add_argument("--local_rank", type=int, default=-1, help="set by the launcher")
    deepspeed.add_config_arguments(parser)
    deepspeed.add_tuning_arguments(parser)
    args = parser.parse_args()
    if args.cycle_first_stair_count < 1:
        args.cycle_first_stair_count = 0
    return args


def configuration(args: argparse.Namespace) -> dict[str, Any]:
    """The JSON file; a schedule on the command line takes the place of the file's."""
    config = json.loads(Path(args.deepspeed_config or HERE / "ds_config.json").read_text())
    args.deepspeed_config = None
    if args.lr_schedule:
        config["scheduler"], reason = get_config_from_args(args)
        if config["scheduler"] is None:
            sys.exit(reason)
        config["optimizer"]["params"].pop("lr", None)  # the schedule's
    return config


class Job:
    """One run: every step's learning rate, momentum and loss in `history.json`."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        deepspeed.init_distributed()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(0)
        model = GPT(GPTShape(args.layers, args.width, 4, args.context))
        self.engine, *_ = deepspeed.initialize(model=model, config=configuration(args))
        self.train_text, self.valid_text = read_text(args.data)
        self.rows: list[dict[str, float]] = []

    def run(self) -> None:
        engine = self.engine
        for step in range(self.args.steps):
            lr, mom = engine.get_lr()[0], engine.get_mom()[0][0]
            loss = engine(*self._batch(self.train_text, step))
            engine.backward(loss)
            engine.step()
            row = {"step": step, "lr": lr, "momentum": mom, "loss": self._mean(loss.detach())}
            if (step + 1) % self.args.valid_every == 0:
                row["valid_loss"] = self._validate()
                if self.rank == 0:
                    print(f"step {step + 1}: lr {lr:.2e}, validation loss {row['valid_loss']:.4f}")
            self.rows.append(row)
        if self.rank == 0:
            self.args.out.mkdir(parents=True, exist_ok=True)
            (self.args.out / "history.json").write_text(json.dumps(self.rows))
        engine.destroy()
        dist.destroy_process_group()

    @torch.no_grad()
    def _validate(self) -> float:
        self.engine.eval()
        losses = [self.engine(*self._batch(self.valid_text, number)) for number in range(4)]
        self.engine.train()
        return self._mean(torch.stack(losses).mean())

    def _batch(self, text: Any, step: int) -> list[torch.Tensor]:
        size = self.engine.train_micro_batch_size_per_gpu()
        context = self.args.context
        pair = batch_at(text, step=step, rank=self.rank, seed=0, batch=size, context=context)
        return [part.to(self.engine.device) for part in pair]

    def _mean(self, value: torch.Tensor) -> float:
        dist.all_reduce(value)
        return value.item() / self.world


if __name__ == "__main__":
    Job(parse_arguments()).run()
