"""Memory of sharded training: model states against the arithmetic, and a model built in shares.

    python benchmarks/zero_memory.py states --ranks 2
    python benchmarks/zero_memory.py init --ranks 4

`states` trains a GPT of 100 M parameters in bf16 at each stage and counts, in every rank, the bytes
of all tensors alive (each storage once) after every block's backward, before and after the step.
The arithmetic is 2 bytes a parameter for weights, 2 for gradients (4 where they are summed in fp32,
which is the default) and 12 for the fp32 weight and Adam's two moments, each divided by the number
of ranks if the stage shards it. Beside it: the peak of the resident set in those steps, over what
the process had before the model was made.

`init` builds a GPT of 1 B parameters in bf16 inside `zero.Init` and compares the peak of each
rank's resident set with its share plus the largest layer.
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

MIB = 2**20
SHAPES = {"tiny": (6, 256), "100M": (14, 768), "1B": (23, 1920)}
"""Blocks and width; a block of width w has 12 w * w parameters and a few."""


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = width // 64

    def forward(self, x: Tensor) -> Tensor:
        n, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, 64).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, d))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Bytes in, loss out; few tokens, so that activations weigh nothing beside the states."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def live_bytes() -> int:
    """Bytes of all tensors alive in this process, each storage once."""
    storages = {}
    for item in gc.get_objects():
        if issubclass(type(item), Tensor) and item.layout == torch.strided and not item.is_meta:
            storage = item.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def resident(field: str) -> int:
    """Bytes of a line of /proc/self/status: VmRSS now, VmHWM at its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def forget_peak() -> None:
    """Let VmHWM start again from now."""
    Path("/proc/self/clear_refs").write_text("5")


def arithmetic(parameters: int, stage: int, ranks: int, gradient: int) -> float:
    """Bytes of model states a rank holds."""
    states = 12 * parameters / (ranks if stage >= 1 else 1)
    gradients = gradient * parameters / (ranks if stage >= 2 else 1)
    weights = 2 * parameters / (ranks if stage >= 3 else 1)
    return weights + gradients + states


def bucket(shape: str) -> int:
    """Elements of a bucket in these runs: a fortieth of the model."""
    layers, width = SHAPES[shape]
    return 12 * layers * width * width // 40


def buffers(stage: int, ranks: int, gradient: int, shape: str) -> int:
    """Bytes beside the states, of the settings used here: what is on its way between ranks.

    Two buckets of gradients are reduced at a time, each with a receiving copy (stages 1 to 3; at
    stage 1 the buckets themselves count as gradients), while the next one fills and autograd holds
    a gradient in bf16. Stage 3 also holds the gathered weights of a block and of the one after it.
    """
    _, width = SHAPES[shape]
    largest = max(4 * width * width, bucket(shape))
    moving = {0: 0, 1: 2, 2: 5, 3: 5}[stage] * gradient * largest
    gathered = 2 * 2 * 12 * width * width if stage == 3 else 0
    return moving + gathered + 2 * 4 * width * width


def configuration(stage: int, shape: str, accumulate: str) -> dict[str, Any]:
    size = bucket(shape)
    return {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": accumulate},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": size,
            "allgather_bucket_size": size,
            "stage3_prefetch_bucket_size": size,
            "stage3_max_reuse_distance": 0,
        },
    }


def train(engine: Any, look: Callable[[], None] = lambda: None) -> None:
    """One step; `look` is called where most is alive."""
    ids = torch.randint(256, (1, 17))
    loss = engine(ids[:, :-1], ids[:, 1:])
    engine.backward(loss)
    look()
    engine.step()
    look()


def measure_states(stage: int, shape: str, accumulate: str = "fp32") -> dict[str, float]:
    """One rank: bytes alive at the peak of two steps, and how far the resident set rose."""
    import deepspeed

    config = configuration(stage, shape, accumulate)
    train(deepspeed.initialize(model=GPT(1, 64), config=config)[0])  # loads what all runs need
    torch.manual_seed(0)
    gc.collect()
    before, rss_before = live_bytes(), resident("VmRSS")
    model = GPT(*SHAPES[shape])
    parameters = sum(param.numel() for param in model.parameters())
    engine, *_ = deepspeed.initialize(model=model, config=config)
    peak = 0

    def look(*_: Any) -> None:
        nonlocal peak
        peak = max(peak, live_bytes() - before)

    for block in model.blocks:
        block.register_full_backward_hook(look)
    train(engine)
    gc.collect()
    forget_peak()
    train(engine, look)
    rise = resident("VmHWM") - rss_before
    engine.destroy()
    gradient = 2 if accumulate == "bf16" else 4
    ranks = dist.get_world_size()
    return {
        "parameters": parameters,
        "arithmetic": arithmetic(parameters, stage, ranks, gradient),
        "buffers": buffers(stage, ranks, gradient, shape),
        "alive": peak,
        "resident": rise,
    }


def measure_init(shape: str) -> dict[str, float]:
    """One rank: how far the peak of the resident set rose while a model was built in shares."""
    import deepspeed

    config = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    config["zero_optimization"] = {"stage": 3}
    layers, width = SHAPES[shape]
    with deepspeed.zero.Init(config_dict_or_path=config):
        Block(64)
    gc.collect()
    forget_peak()
    before = resident("VmRSS")
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = GPT(layers, width)
    peak = resident("VmHWM") - before
    parameters = sum(param.ds_numel for param in model.parameters())  # type: ignore[attr-defined]
    return {
        "parameters": parameters,
        "whole": 2 * parameters,
        "share": 2 * parameters / dist.get_world_size(),
        "layer": 2 * 4 * width * width,
        "held": sum(param.ds_tensor.nbytes for param in model.parameters()),  # type: ignore[attr-defined]
        "resident": peak,
    }


MEASURES = {"states": measure_states, "init": measure_init}


def work(options: argparse.Namespace) -> None:
    """One rank: measure, let rank 0 print the largest of all ranks."""
    torch.set_num_threads(1)
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo", init_method=f"file://{options.store}", rank=rank, world_size=ranks
    )
    if options.claim == "states":
        found = measure_states(options.stage, options.shape, options.accumulate)
    else:
        found = measure_init(options.shape)
    values = torch.tensor(list(found.values()), dtype=torch.float64)
    dist.all_reduce(values, dist.ReduceOp.MAX)
    if rank == 0:
        print("FOUND", *values.tolist(), flush=True)
    dist.barrier()
    os._exit(0)


def run(options: argparse.Namespace, *arguments: str) -> list[float]:
    """What the ranks of one measurement printed."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, options.claim, *arguments]
        command += ["--shape", options.shape, "--store", f"{folder}/store"]
        started = [
            subprocess.Popen(
                command,
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(options.ranks)}
                | {"LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(options.ranks)
        ]
        outputs = [process.communicate()[0] for process in started]
    for line in outputs[0].splitlines():
        if line.startswith("FOUND"):
            return [float(number) for number in line.split()[1:]]
    raise SystemExit("a rank failed:\n" + "\n".join(outputs))


def report_states(options: argparse.Namespace) -> None:
    print(
        "| ranks | stage | gradients | arithmetic | alive | over it | stated buffers | resident |"
    )
    print("| ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for accumulate in options.formats:
        for stage in options.stages:
            _, expected, moving, alive, rss = run(
                options, "--stage", str(stage), "--accumulate", accumulate
            )
            cells = f"{expected / MIB:.0f} | {alive / MIB:.0f} | {alive / expected - 1:+.1%}"
            cells += f" | {moving / MIB:.0f} | {rss / MIB:.0f}"
            print(f"| {options.ranks} | {stage} | {accumulate} | {cells} |", flush=True)


def report_init(options: argparse.Namespace) -> None:
    parameters, whole, share, layer, held, peak = run(options)
    print("| parameters | whole | share | largest layer | share + layer | held | peak |")
    print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    sizes = [whole, share, layer, share + layer, held, peak]
    cells = " | ".join(f"{size / MIB:.0f}" for size in sizes)
    print(f"| {parameters / 1e6:.0f} M | {cells} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("claim", choices=list(MEASURES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--shape", choices=list(SHAPES), default=None)
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--formats", nargs="+", default=["bf16", "fp32"])
    parser.add_argument("--stage", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--accumulate", default="fp32", help=argparse.SUPPRESS)
    parser.add_argument("--store", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.shape = options.shape or {"states": "100M", "init": "1B"}[options.claim]
    if options.store:
        work(options)
    elif options.claim == "states":
        report_states(options)
    else:
        report_init(options)


if __name__ == "__main__":
    main()
