"""One rank of one deepspeed: trains a tiny GPT from a JSON and prints its losses.

Runs with whichever deepspeed is installed beside it. The model and the batches depend on the seed
alone.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "gpt"))
from model import GPT, GPTShape

import deepspeed


def main() -> None:
    job = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = GPT(GPTShape(layers=2, width=32, heads=2, context=16))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=job["config"]
    )
    losses, rates = [], []
    accumulation = engine.gradient_accumulation_steps()
    for step in range(job["steps"]):
        total = torch.zeros(())
        rates.append(float(engine.optimizer.param_groups[0]["lr"]))
        for micro in range(accumulation):
            generator = torch.Generator().manual_seed(1000 * step + 10 * micro + rank)
            tokens = torch.randint(256, (2, 17), generator=generator) // 8
            loss = engine(tokens[:, :-1], tokens[:, 1:])
            engine.backward(loss)
            engine.step()
            total += loss.detach().float() / accumulation
        dist.all_reduce(total)
        losses.append(total.item() / dist.get_world_size())
    if rank == 0:
        Path(os.environ["ANSWER"]).write_text(json.dumps({"losses": losses, "rates": rates}))


if __name__ == "__main__":
    main()
