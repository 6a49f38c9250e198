"""Arguments, parameter groups and the record of losses: what both programs share."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from network import BertMultiTask

HERE = Path(__file__).parent


def get_argument_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Pretrain BERT on masked bytes of real text.")
    add = parser.add_argument
    add("--cf", type=Path, default=HERE / "bert_tiny_seq64.json", help="shape of the model")
    add("--data", type=Path, help="file or folder of text; default: Python's own sources")
    add("--output_dir", type=Path, default=HERE / "runs" / "plain", help="results folder")
    add("--max_steps", type=int, default=240, help="optimizer steps")
    add("--schedule_steps", type=int, default=240, help="steps that the schedule is made for")
    add("--max_seq_length", type=int, help="bytes a row; default: as the model's file says")
    add("--train_batch_size", type=int, default=64, help="rows a step")
    add("--gradient_accumulation_steps", type=int, default=1)
    add("--learning_rate", type=float, default=4e-3)
    add("--weight_decay", type=float, default=0.01)
    add("--max_grad_norm", type=float, default=1.0)
    add("--print_steps", type=int, default=20, help="steps between lines of output")
    add("--ckpt_steps", type=int, default=0, help="steps between checkpoints; 0: only the last")
    add("--resume", action="store_true", help="go on from the last checkpoint of --output_dir")
    add("--seed", type=int, default=0)
    return parser


def prepare_optimizer_parameters(
    args: argparse.Namespace, model: BertMultiTask
) -> list[dict[str, Any]]:
    """Two groups: biases and norms do not decay."""
    named = [item for item in model.network.named_parameters() if item[1].requires_grad]
    still = [param for name, param in named if "bias" in name or "norm" in name]
    moved = [param for name, param in named if not ("bias" in name or "norm" in name)]
    return [
        {"params": moved, "weight_decay": args.weight_decay},
        {"params": still, "weight_decay": 0.0},
    ]


class Losses:
    """The loss of each step in `losses.json`; only the writing rank prints and keeps any."""

    def __init__(self, args: argparse.Namespace, *, write: bool = True) -> None:
        self.file, self.every, self.write = args.output_dir / "losses.json", args.print_steps, write
        self.rows: list[dict[str, float]] = []
        if args.resume and self.file.exists():
            self.rows = json.loads(self.file.read_text())

    def start_at(self, step: int) -> None:
        """Forget what was recorded after the checkpoint."""
        self.rows = [row for row in self.rows if row["step"] <= step]

    def add(self, step: int, *, samples: int, loss: float, lr: float) -> None:
        self.rows.append({"step": step, "samples": samples, "loss": loss, "lr": lr})
        if self.write and (step == 1 or step % self.every == 0):
            print(f"step {step:4d}: loss {loss:.4f} nats a masked byte, lr {lr:.2e}", flush=True)

    def close(self, valid_loss: float) -> None:
        if self.write:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(json.dumps(self.rows))
            print(f"validation loss {valid_loss:.4f}; losses in {self.file}", flush=True)
