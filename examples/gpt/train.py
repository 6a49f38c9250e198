"""Train a byte-level GPT on real text with `deepspeed.initialize`.

deepspeed --num_gpus 2 train.py --deepspeed_config ds_config.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from history import History, plot_history
from model import GPT, GPTShape
from text import batch_at, read_text
from tqdm import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

import deepspeed
from ds_data import TokenBudget, TokenDecayLR

HERE = Path(__file__).parent


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="file or folder; default: Python's own sources")
    parser.add_argument(
        "--out", type=Path, default=HERE / "runs" / "default", help="results folder"
    )
    parser.add_argument("--steps", type=int, default=120, help="optimizer steps")
    parser.add_argument(
        "--train-tokens", type=int, help="end after so many tokens, decay by them; for curricula"
    )
    parser.add_argument("--save-every", type=int, default=40, help="steps between checkpoints")
    parser.add_argument("--valid-every", type=int, default=20, help="steps between validations")
    parser.add_argument("--valid-batches", type=int, default=4, help="batches of one validation")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int, default=GPTShape.layers)
    parser.add_argument("--width", type=int, default=GPTShape.width)
    parser.add_argument("--heads", type=int, default=GPTShape.heads)
    parser.add_argument("--context", type=int, default=GPTShape.context)
    parser.add_argument("--zero", type=int, choices=(0, 1, 2, 3), help="ZeRO stage")
    parser.add_argument("--offload", choices=("none", "cpu", "nvme"), default="none")
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), default="fp32")
    parser.add_argument("--local_rank", type=int, default=-1, help="set by the launcher")
    deepspeed.add_config_arguments(parser)
    return parser.parse_args()


def configuration(args: argparse.Namespace) -> dict[str, Any]:
    """The JSON file with what the command line changes."""
    config: dict[str, Any] = json.loads(
        Path(args.deepspeed_config or HERE / "ds_config.json").read_text()
    )
    args.deepspeed_config = None
    if args.dtype != "fp32":
        config[args.dtype] = {"enabled": True}
    if args.zero is not None:
        zero: dict[str, Any] = {"stage": args.zero}
        if args.offload != "none":
            device = {"device": args.offload}
            if args.offload == "nvme":
                device["nvme_path"] = str(args.out / "offload")
            zero["offload_optimizer"] = device
            if args.zero == 3:
                zero["offload_param"] = device
        config["zero_optimization"] = zero
    scheduler = config.get("scheduler", {}).get("params", {})
    if "total_num_steps" in scheduler:
        scheduler["total_num_steps"] = args.steps
    if args.train_tokens is not None:
        config.pop("scheduler", None)  # by tokens instead of by steps
    return config


class Job:
    """One training run: engine, text, history."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        deepspeed.init_distributed()
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        torch.manual_seed(args.seed)
        shape = GPTShape(args.layers, args.width, args.heads, args.context)
        model = GPT(shape)
        self.parameters = sum(param.numel() for param in model.parameters())
        args.out.mkdir(parents=True, exist_ok=True)
        self.budget = TokenBudget(args.train_tokens) if args.train_tokens else None
        self.engine, *_ = deepspeed.initialize(
            model=model,
            config=configuration(args),
            lr_scheduler=self._token_schedule if self.budget else None,
        )
        self.train_text, self.valid_text = read_text(args.data)
        self.history = History(args.out, write=self.rank == 0)
        self.tokens = 0
        if args.resume:
            self._resume()
        else:
            self.history.clear()

    def run(self) -> None:
        args, engine = self.args, self.engine
        first = engine.global_steps
        self._say(
            f"{self.parameters / 1e6:.1f} M parameters, {len(self.train_text) / 1e6:.1f} MB of "
            f"text, {self.world} process(es) on {engine.device}, from step {first} to "
            + (f"{args.train_tokens:,} tokens" if self.budget else f"step {args.steps}")
        )
        if first == 0:
            self._validate(0)
        with logging_redirect_tqdm():  # log lines above the bar, not into it
            self._train(first)
        self._finish()

    def _train(self, first: int) -> None:
        args, engine = self.args, self.engine
        if self._done(first):
            self._say("this run is finished already; more --steps or --train-tokens go on with it")
            return
        bar = tqdm(
            initial=self.budget.consumed if self.budget else first,
            total=self.budget.train_tokens if self.budget else args.steps,
            unit="token" if self.budget else "step",
            disable=self.rank != 0,
            desc="training",
            file=sys.stdout,
            mininterval=1,
        )
        start, seen, step = time.perf_counter(), 0, first
        while not self._done(step):
            loss, tokens = self._step(step)
            step, seen = step + 1, seen + tokens
            self.tokens += tokens
            if self.budget:
                self.budget.add(tokens)
            rate = seen / (time.perf_counter() - start)
            figures = {"loss": loss, "lr": engine.get_lr()[0], "tokens_per_second": rate}
            self.history.add(step, **figures, tokens=self.tokens, seqlen=self._length())
            bar.update(tokens if self.budget else 1)
            bar.set_postfix(loss=f"{loss:.3f}", tokens_per_s=f"{rate:.0f}")
            if step % args.valid_every == 0 or self._done(step):
                self._validate(step)
            if step % args.save_every == 0 or self._done(step):
                state = {"tokens": self.tokens}
                engine.save_checkpoint(args.out / "checkpoints", client_state=state)
        bar.close()

    def _done(self, step: int) -> bool:
        return self.budget.done if self.budget else step >= self.args.steps

    def _length(self) -> int:
        """Bytes of a sequence in this step: all of the context, or what the curriculum says."""
        curriculum = self.engine.curriculum_scheduler_legacy
        return curriculum.get_current_difficulty() if curriculum else self.args.context

    def _token_schedule(self, optimizer: torch.optim.Optimizer) -> TokenDecayLR:
        """Up by steps, down by tokens: short sequences would decay too fast by steps."""
        return TokenDecayLR(optimizer, decay_tokens=self.args.train_tokens, warmup=20, lowest=0.1)

    def _step(self, step: int) -> tuple[float, int]:
        """One optimizer step; the loss, averaged over micro-batches and ranks, and its tokens."""
        engine, accumulation = self.engine, self.engine.gradient_accumulation_steps()
        total = torch.zeros((), device=engine.device)
        for micro in range(accumulation):
            loss = engine(*self._batch(self.train_text, step * accumulation + micro))
            engine.backward(loss)
            tokens = engine.train_batch_size() * self._length()
            engine.step(lr_kwargs={"tokens": tokens} if self.budget else None)
            total += loss.detach().float() / accumulation
        return self._mean(total), tokens

    @torch.no_grad()
    def _validate(self, step: int) -> None:
        engine = self.engine
        engine.eval()
        total = torch.zeros((), device=engine.device)
        for number in range(self.args.valid_batches):
            total += engine(*self._batch(self.valid_text, number)).float() / self.args.valid_batches
        engine.train()
        loss = self._mean(total)
        self.history.add(step, valid_loss=loss, tokens=self.tokens)
        if self.rank == 0:
            tqdm.write(f"step {step:5d}: validation loss {loss:.4f} nats a byte")

    def _batch(self, text: np.ndarray, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        size = self.engine.train_micro_batch_size_per_gpu()
        pair = batch_at(
            text,
            step=step,
            rank=self.rank,
            seed=self.args.seed,
            batch=size,
            context=self.args.context,
        )
        return pair[0].to(self.engine.device), pair[1].to(self.engine.device)

    def _mean(self, value: torch.Tensor) -> float:
        dist.all_reduce(value)
        return value.item() / self.world

    def _resume(self) -> None:
        path, state = self.engine.load_checkpoint(self.args.out / "checkpoints")
        if path is None:
            self._say("no checkpoint yet: starting from the beginning")
            self.history.clear()
        else:
            self._say(f"resumed from {path}")
            self.tokens = state["tokens"]
            if self.budget:
                self.budget.add(self.tokens)
            self.history.cut(self.engine.global_steps)

    def _finish(self) -> None:
        module = self.engine.module
        with deepspeed_gather(self.engine):
            if self.rank == 0:
                module.eval()
                sample = module.generate(b"def ", 400, temperature=0.7, seed=self.args.seed)
                (self.args.out / "sample.txt").write_bytes(sample)
                print("\n--- a sample of the model's writing ---")
                print(printable(sample))
        if self.rank == 0:
            plot_history(self.args.out)
            first, last = self.history.first_and_last("valid_loss")
            print(f"\nvalidation loss {first:.3f} -> {last:.3f} nats a byte")
            print(
                f"loss curve: {self.args.out / 'loss.png'}; TensorBoard: {self.args.out / 'events'}"
            )
        dist.barrier()
        self.history.close()
        self.engine.destroy()
        dist.destroy_process_group()

    def _say(self, message: str) -> None:
        if self.rank == 0:
            print(message, flush=True)


def printable(text: bytes) -> str:
    """What a terminal may be sent: an untrained model also writes control characters."""
    letters = text.decode("utf-8", errors="replace")
    return "".join(
        c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in letters
    )


def deepspeed_gather(engine: Any) -> Any:
    """All weights whole on every rank, whatever the ZeRO stage."""
    return engine.gather(list(engine.module.parameters()))


if __name__ == "__main__":
    Job(parse_arguments()).run()
