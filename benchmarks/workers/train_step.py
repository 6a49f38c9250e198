"""One rank of one contender: trains a GPT, a burst of steps each time it is told to.

Runs in any environment: it imports torch, and of the contenders only the one asked for.
Commands come on standard input (`run N`, `quit`); rank 0 answers with seconds a step, as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "gpt"))
from model import GPT, GPTShape

Step = Callable[[Tensor, Tensor], Tensor]
LR, BETAS, DECAY, CLIP = 1e-3, (0.9, 0.95), 0.1, 1.0


def plain_ddp(model: nn.Module, dtype: torch.dtype, *, masters: bool) -> Step:
    """DistributedDataParallel and torch's fused AdamW, as one would write it by hand."""
    for param in model.parameters():
        param.data = param.data.to(dtype)
    wrapped = nn.parallel.DistributedDataParallel(model)
    params = list(model.parameters())
    updated = [nn.Parameter(p.detach().float()) for p in params] if masters else params
    optimizer = torch.optim.AdamW(updated, lr=LR, betas=BETAS, weight_decay=DECAY, fused=True)

    def step(tokens: Tensor, targets: Tensor) -> Tensor:
        loss = wrapped(tokens, targets)
        loss.backward()
        if masters:
            for master, param in zip(updated, params, strict=True):
                master.grad = param.grad.float()
                param.grad = None
        nn.utils.clip_grad_norm_(updated, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if masters:
            with torch.no_grad():
                torch._foreach_copy_(params, updated)
        return loss

    return step


def engine(model: nn.Module, config: dict[str, Any]) -> Step:
    """`deepspeed.initialize`, whichever deepspeed this environment holds."""
    import deepspeed

    made, *_ = deepspeed.initialize(model=model, config=config)

    def step(tokens: Tensor, targets: Tensor) -> Tensor:
        loss = made(tokens, targets)
        made.backward(loss)
        made.step()
        return loss

    return step


def json_config(dtype: str, batch: int, extra: dict[str, Any]) -> dict[str, Any]:
    """The JSON that both deepspeeds are given."""
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": batch,
        "gradient_clipping": CLIP,
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": LR, "betas": list(BETAS), "weight_decay": DECAY},
        },
        **extra,
    }
    if dtype == "bf16":
        config["bf16"] = {"enabled": True}
    return config


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--contender", required=True, choices=("ddp", "ddp_masters", "engine"))
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--config", default="{}", help="more JSON for the engine")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=528)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--context", type=int, default=128)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = GPT(GPTShape(args.layers, args.width, args.heads, args.context))
    dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
    if args.contender == "engine":
        step = engine(model, json_config(args.dtype, args.batch, json.loads(args.config)))
    else:
        step = plain_ddp(model, dtype, masters=args.contender == "ddp_masters")
    serve(step, rank, args)


def serve(step: Step, rank: int, args: argparse.Namespace) -> None:
    """Obey commands until `quit`."""
    generator = torch.Generator().manual_seed(rank)
    answer = os.fdopen(os.dup(int(os.environ["ANSWER_FD"])), "w") if rank == 0 else None
    for line in sys.stdin:
        command, *rest = line.split()
        if command == "quit":
            break
        times, loss = [], torch.zeros(())
        for _ in range(int(rest[0])):
            tokens = torch.randint(256, (args.batch, args.context + 1), generator=generator)
            dist.barrier()
            start = time.perf_counter()
            loss = step(tokens[:, :-1], tokens[:, 1:])
            dist.barrier()
            times.append(time.perf_counter() - start)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        if answer is not None:
            print(
                json.dumps({"times": times, "loss": loss.item(), "peak_mb": peak}),
                file=answer,
                flush=True,
            )
    os._exit(0)


if __name__ == "__main__":
    main()
