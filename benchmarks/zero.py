"""Step time and memory of sharded training: ours, the reference, FSDP2 and DDP, in one run.

Every variant trains the same GPT on the same random tokens with AdamW in processes of its own; the
rounds are interleaved and medians compared. Memory is the peak resident set over what the process
had before the model was made.

    python benchmarks/zero.py --peer-python PATH --size 20 --dtype fp32
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

SIZES = {"2": (4, 192, 2048), "20": (6, 448, 8192), "100": (12, 768, 16384)}
LENGTH = 128


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
    def __init__(self, layers: int, width: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def config_of(kind: str, dtype: str, folder: str) -> dict[str, Any]:
    """The JSON of a variant like `3`, `3-cpu`, `3-nvme`, `3-frugal`."""
    stage, _, extra = kind.partition("-")
    zero: dict[str, Any] = {"stage": int(stage)}
    if extra in ("cpu", "nvme"):
        zero["offload_optimizer"] = {"device": extra, "nvme_path": folder}
        if extra == "nvme":
            zero["sub_group_size"] = 4_000_000
    if extra == "frugal":
        zero["stage3_max_reuse_distance"] = 0
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.1}},
        "zero_optimization": zero,
        "gradient_clipping": 1.0,
    }
    return config | ({"bf16": {"enabled": True}} if dtype == "bf16" else {})


class Plain:
    """DDP, or FSDP2 with each block sharded, under the engine's interface."""

    def __init__(self, kind: str, model: nn.Module, dtype: str) -> None:
        self.model = model
        if kind == "ddp":
            self.model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        else:
            from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

            low = torch.bfloat16 if dtype == "bf16" else None
            policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
            for block in model.blocks:  # type: ignore[union-attr]
                fully_shard(block, mp_policy=policy)
            fully_shard(model, mp_policy=policy)
        self.params = list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.params, lr=1e-4, weight_decay=0.1)
        self.cast = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bf16" and kind == "ddp")

    def __call__(self, *args: Tensor) -> Tensor:
        with self.cast:
            return self.model(*args)

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self) -> None:
        nn.utils.clip_grad_norm_(self.params, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def warm_up() -> None:
    """Let the library load what every variant needs, so that it does not count."""
    import torch._dynamo

    model = GPT(1, 64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.zeros(1, 8, dtype=torch.int64)
    model(ids, ids).backward()
    optimizer.step()


def work(options: argparse.Namespace) -> None:
    """One rank of one variant."""
    torch.set_num_threads(1)
    layers, width, vocabulary = SIZES[options.size]
    kind = options.worker
    if kind not in ("ddp", "fsdp2"):
        import deepspeed
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.all_reduce(torch.zeros(1))
    warm_up()
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    torch.manual_seed(0)
    model = GPT(layers, width, vocabulary)
    if kind in ("ddp", "fsdp2"):
        engine: Any = Plain(kind, model, options.dtype)
    else:
        config = config_of(kind, options.dtype, options.folder)
        engine = deepspeed.initialize(model=model, config=config)[0]
    times, losses = [], []
    for step in range(options.steps):
        generator = torch.Generator().manual_seed(100 * step + rank)
        ids = torch.randint(vocabulary, (options.batch, LENGTH + 1), generator=generator)
        dist.barrier()
        begin = time.perf_counter()
        loss = engine(ids[:, :-1], ids[:, 1:])
        engine.backward(loss)
        engine.step()
        times.append(time.perf_counter() - begin)
        losses.append(loss.item())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if rank == 0:
        print("RESULT", json.dumps([times[2:], (peak - base) / 1024, losses]), flush=True)
    os._exit(0)


def launch(python: str, kind: str, options: argparse.Namespace, port: int) -> Any:
    """Run a variant on all ranks; returns what rank 0 measured, or None."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        arguments = [__file__, "--worker", kind, "--size", options.size, "--dtype", options.dtype]
        arguments += ["--steps", str(options.steps), "--batch", str(options.batch)]
        arguments += ["--folder", folder]
        processes = []
        for rank in range(options.ranks):
            env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(options.ranks)}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
            processes.append(
                subprocess.Popen(
                    [python, *arguments],
                    env={**os.environ, **env},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        outputs = [process.communicate(timeout=600)[0] for process in processes]
    for line in outputs[0].splitlines():
        if line.startswith("RESULT "):
            return json.loads(line[7:])
    print(f"{kind}: no result\n{outputs[0][-1500:]}", file=sys.stderr)
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", default=None)
    parser.add_argument("--size", default="20", choices=list(SIZES))
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--ours", default="1,2,3,3-frugal,1-cpu,3-cpu,3-nvme")
    parser.add_argument("--peers", default="1,2,3,1-cpu,3-cpu")
    parser.add_argument("--worker", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
    variants = [("DDP", sys.executable, "ddp"), ("FSDP2", sys.executable, "fsdp2")]
    if options.peer_python:
        variants += [(f"reference {k}", options.peer_python, k) for k in options.peers.split(",")]
    variants += [(f"ours {k}", sys.executable, k) for k in options.ours.split(",")]
    found: dict[str, list[Any]] = {name: [] for name, _, _ in variants}
    for number in range(options.rounds):
        for index, (name, python, kind) in enumerate(variants):
            port = 29000 + (os.getpid() * 31 + number * len(variants) + index) % 2000
            result = launch(python, kind, options, port)
            if result is not None:
                found[name].append(result)
                seconds = statistics.median(result[0])
                print(f"{name}: {seconds:.3f} s, {result[1]:.0f} MB", file=sys.stderr, flush=True)
    report(found, options)


def report(found: dict[str, list[Any]], options: argparse.Namespace) -> None:
    """The table: medians over rounds and steps, ratios to DDP."""
    print(f"GPT {options.size} M, {options.dtype}, {options.ranks} processes of one thread\n")
    print("| variant | step s | / DDP | peak MB | loss of the last step |")
    print("| --- | --- | --- | --- | --- |")
    step = {
        name: statistics.median(t for times, _, _ in results for t in times)
        for name, results in found.items()
        if results
    }
    for name, seconds in step.items():
        peak = statistics.median(memory for _, memory, _ in found[name])
        ratio = seconds / step["DDP"] if "DDP" in step else float("nan")
        last = found[name][0][2][-1]
        print(f"| {name} | {seconds:.3f} | {ratio:.2f} | {peak:.0f} | {last:.5f} |")


if __name__ == "__main__":
    if not Path(__file__).exists():
        raise SystemExit("run me as a file")
    main()
