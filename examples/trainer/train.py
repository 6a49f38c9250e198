"""Fine-tune a small language model with the Hugging Face Trainer; nothing is downloaded.

python train.py --output_dir runs/plain
python train.py --deepspeed ds_config.json --output_dir runs/deepspeed
deepspeed --num_gpus 2 train.py --deepspeed ds_config.json --output_dir runs/deepspeed
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from accelerate import PartialState
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

sys.path.append(str(Path(__file__).resolve().parents[1] / "gpt"))
from text import read_text

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


class Windows(Dataset[dict[str, Tensor]]):
    """Windows of a text, shuffled once, so that every run sees them in one order."""

    def __init__(self, text: np.ndarray, length: int, limit: int = 20_000) -> None:
        count = min(limit, len(text) // length)
        rows = text[: count * length].reshape(count, length)
        order = np.random.default_rng(0).permutation(count)
        self.rows = torch.from_numpy(rows[order].astype(np.int64))  # bytes are the tokens

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--deepspeed", help="JSON config; without it the Trainer trains by itself")
    add("--model", type=Path, default=HERE / "runs" / "base", help="folder of a saved model; made")
    add("--data", type=Path, help="file or folder to learn; default: this repository's pages")
    add("--output_dir", type=Path, default=HERE / "runs" / "plain", help="results folder")
    add("--max_steps", type=int, default=100)
    add("--base_steps", type=int, default=150, help="steps to train the model that is fine-tuned")
    add("--batch", type=int, default=16, help="rows a process")
    add("--accumulation", type=int, default=1)
    add("--hidden", type=int, default=128)
    add("--layers", type=int, default=4)
    add("--length", type=int, default=128)
    add("--local_rank", type=int, default=-1, help="set by the launcher")
    return parser.parse_args()


def pages() -> np.ndarray:
    """The Markdown of this repository: prose, where the base model has seen only code."""
    files = [ROOT / "README.md", *sorted(ROOT.glob("packages/*/README.md"))]
    files += sorted(ROOT.glob("docs/*.md"))
    return np.frombuffer(b"".join(file.read_bytes() for file in files), dtype=np.uint8)


def arguments(args: argparse.Namespace, **changes: Any) -> TrainingArguments:
    chosen: dict[str, Any] = {
        "output_dir": str(args.output_dir),
        "max_steps": args.max_steps,
        "per_device_train_batch_size": args.batch,
        "gradient_accumulation_steps": args.accumulation,
        "learning_rate": 2e-3,
        "warmup_steps": 10,
        "max_grad_norm": 1.0,
        "logging_steps": 5,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 0,
        "train_sampling_strategy": "sequential",
        "dataloader_pin_memory": torch.accelerator.is_available(),
        "deepspeed": args.deepspeed,
        "use_cpu": not torch.accelerator.is_available() and args.deepspeed is None,
    } | changes
    return TrainingArguments(**chosen)


def prepare_processes() -> dict[str, Any]:
    """On a CPU accelerate counts one process, unless it is told the backend beforehand."""
    if torch.accelerator.is_available() or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return {}
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    PartialState(backend="gloo")
    return {"accelerator_config": {"use_configured_state": True}}


def make_base(args: argparse.Namespace) -> None:
    """A model made from its config and trained on Python's own sources."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=args.hidden,
        intermediate_size=3 * args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=4,
        max_position_embeddings=args.length,
        tie_word_embeddings=True,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    train, _ = read_text(None)
    options = {"max_steps": args.base_steps, "deepspeed": None, "logging_steps": 50}
    options["use_cpu"] = not torch.accelerator.is_available()
    trainer = Trainer(
        model=LlamaForCausalLM(config),
        args=arguments(args, **options),
        train_dataset=Windows(train, args.length),
    )
    trainer.train()
    trainer.save_model(str(args.model))


def main() -> None:
    args = parse_arguments()
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if not (args.model / "config.json").exists():
        if several:
            sys.exit(
                f"{args.model} holds no model yet: run this once on one process, which makes it"
            )
        make_base(args)
    options = prepare_processes()
    text = pages() if args.data is None else read_text(args.data)[0]
    cut = len(text) * 9 // 10
    training = arguments(args, **options)  # before the model: at stage 3 it is loaded in shares
    trainer = Trainer(
        model=AutoModelForCausalLM.from_pretrained(args.model),
        args=training,
        train_dataset=Windows(text[:cut], args.length),
        eval_dataset=Windows(text[cut:], args.length),
    )
    # The Trainer evaluates before training with deepspeed at stage 3 only.
    before = None if args.deepspeed else trainer.evaluate()["eval_loss"]
    trainer.train()
    after = trainer.evaluate()["eval_loss"]
    trainer.save_model()
    if trainer.is_world_process_zero():
        rows = [row for row in trainer.state.log_history if "loss" in row]
        (args.output_dir / "losses.json").write_text(json.dumps(rows))
        start = "" if before is None else f" (before: {before:.4f})"
        print(f"loss on held-out pages {after:.4f}{start}; the model is in {args.output_dir}")


if __name__ == "__main__":
    main()
