"""One rank of one deepspeed: saves and loads checkpoints when told to, and says how long it took.

Runs with whichever deepspeed is installed beside it. Commands come on standard input (`train STEP`,
`save TAG`, `load TAG`), each is answered with a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "gpt"))
from model import GPT, GPTShape

import deepspeed


class Job:
    """An engine over a GPT that this rank shares with the others."""

    def __init__(self, job: dict[str, Any]) -> None:
        torch.manual_seed(job["seed"])
        layers, width = job["shape"]
        model = GPT(GPTShape(layers=layers, width=width, heads=width // 64, context=16))
        self.folder = Path(job["folder"])
        self.engine, *_ = deepspeed.initialize(
            model=model, model_parameters=list(model.parameters()), config=job["config"]
        )

    def train(self, step: str) -> dict[str, float]:
        """One step on a batch that depends on its number only; the loss."""
        generator = torch.Generator().manual_seed(int(step))
        tokens = torch.randint(256, (1, 17), generator=generator)
        loss = self.engine(tokens[:, :-1], tokens[:, 1:])
        self.engine.backward(loss)
        self.engine.step()
        return {"loss": loss.item()}

    def save(self, tag: str) -> dict[str, float]:
        """Seconds until the call returned, and until all its bytes were forced to the disk."""
        dist.barrier()
        begin = time.perf_counter()
        self.engine.save_checkpoint(str(self.folder), tag=tag)
        returned = time.perf_counter() - begin
        dist.barrier()
        if dist.get_rank() == 0:
            for path in (self.folder / tag).rglob("*"):
                force(path)
        return {"returned": returned, "on disk": time.perf_counter() - begin}

    def load(self, tag: str) -> dict[str, float]:
        """Seconds until weights and optimizer state are those of the checkpoint."""
        dist.barrier()
        begin = time.perf_counter()
        path, _ = self.engine.load_checkpoint(str(self.folder), tag=tag)
        if path is None:
            raise RuntimeError(f"no checkpoint {tag}")
        return {"seconds": time.perf_counter() - begin}


def force(path: Path) -> None:
    """Force a file to the disk; costs nothing if it is there."""
    if path.is_file():
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)


def main() -> None:
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo")
    job = Job(json.loads(sys.argv[1]))
    actions: dict[str, Callable[[str], dict[str, float]]]
    actions = {"train": job.train, "save": job.save, "load": job.load}
    print("ANSWER {}", flush=True)
    for line in sys.stdin:
        action, _, argument = line.strip().partition(" ")
        try:
            answer: dict[str, Any] = actions[action](argument)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        print("ANSWER", json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
