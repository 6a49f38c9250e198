"""Step time and memory of sharded training: ours, the reference, FSDP2 and DDP, in one run.

Every variant trains the same GPT on the same random tokens with AdamW in processes of its own. All
live at once and step in turn, one variant at a time while the others sleep, so that the drift of a
machine hits all alike; medians are compared. A step takes as long as its slowest rank; processor
seconds tell what of it is work where other guests of the machine disturb. Memory is the peak
resident set of rank 0 over what the process had before the model was made.

    python benchmarks/zero.py --peer-python PATH --size 20 --dtype fp32
    python benchmarks/zero.py --peer-python PATH --rows ddp peer-2 ours-2 --steps 6
"""

from __future__ import annotations

import argparse
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
PLAIN = ("alone", "ddp", "fsdp2")
"""Rows without an engine; `alone` does not communicate: what the model itself costs."""


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
    """DDP, FSDP2 with each block sharded, or no communication, under the engine's interface."""

    def __init__(self, kind: str, model: nn.Module, dtype: str) -> None:
        self.model = model
        if kind == "ddp":
            self.model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        elif kind == "fsdp2":
            from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

            low = torch.bfloat16 if dtype == "bf16" else None
            policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
            for block in model.blocks:  # type: ignore[union-attr]
                fully_shard(block, mp_policy=policy)
            fully_shard(model, mp_policy=policy)
        self.params = list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.params, lr=1e-4, weight_decay=0.1)
        autocast = dtype == "bf16" and kind != "fsdp2"
        self.cast = torch.autocast("cpu", torch.bfloat16, enabled=autocast)

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
    if kind not in PLAIN:
        import deepspeed
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    dist.all_reduce(torch.zeros(1))
    warm_up()
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    torch.manual_seed(0)
    model = GPT(layers, width, vocabulary)
    if kind in PLAIN:
        engine: Any = Plain(kind, model, options.dtype)
    else:
        config = config_of(kind, options.dtype, options.folder)
        engine = deepspeed.initialize(model=model, config=config)[0]
    print("READY", flush=True)
    for step, line in enumerate(sys.stdin):
        if line.strip() == "end":
            break
        generator = torch.Generator().manual_seed(100 * step + rank)
        ids = torch.randint(vocabulary, (options.batch, LENGTH + 1), generator=generator)
        dist.barrier()
        begin, busy = time.perf_counter(), time.process_time()
        loss = engine(ids[:, :-1], ids[:, 1:])
        engine.backward(loss)
        engine.step()
        seconds, busy = time.perf_counter() - begin, time.process_time() - busy
        print("STEP", seconds, busy, loss.item(), flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print("PEAK", (peak - base) / 1024, flush=True)
    os._exit(0)


class Contender:
    """The ranks of one variant, waiting for their turn.

    Attributes:
        times: seconds of each step of the slowest rank.
        busy: processor seconds of each step, the mean over ranks.
        losses: rank 0's.
        peak: of rank 0's memory, in MB.
    """

    def __init__(self, python: str, kind: str, options: argparse.Namespace, port: int) -> None:
        arguments = [__file__, "--worker", kind, "--size", options.size, "--dtype", options.dtype]
        arguments += ["--batch", str(options.batch), "--folder", options.folder]
        self.times: list[float] = []
        self.busy: list[float] = []
        self.losses: list[float] = []
        self.peak = 0.0
        self._ranks: list[subprocess.Popen[str]] = []
        for rank in range(options.ranks):
            env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(options.ranks)}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
            self._ranks.append(
                subprocess.Popen(
                    [python, *arguments],
                    env={**os.environ, **env},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        self._answers("READY")

    def step(self) -> None:
        self._tell("step")
        answers = self._answers("STEP")
        self.times.append(max(seconds for seconds, _, _ in answers))
        self.busy.append(statistics.mean(busy for _, busy, _ in answers))
        self.losses.append(answers[0][2])

    def end(self) -> None:
        self._tell("end")
        self.peak = self._answers("PEAK")[0][0]
        for process in self._ranks:
            process.communicate()

    def _tell(self, word: str) -> None:
        for process in self._ranks:
            assert process.stdin is not None
            process.stdin.write(f"{word}\n")
            process.stdin.flush()

    def _answers(self, word: str) -> list[list[float]]:
        """The numbers of each rank's next line that begins with `word`."""
        return [self._answer(process, word) for process in self._ranks]

    def _answer(self, process: subprocess.Popen[str], word: str) -> list[float]:
        seen: list[str] = []
        for line in process.stdout or ():
            if line.startswith(word):
                return [float(number) for number in line.split()[1:]]
            seen.append(line)
        raise RuntimeError("a rank ended early:\n" + "".join(seen[-20:]))


STAGES = ["0", "1", "2", "3", "1-cpu", "2-cpu", "3-cpu", "3-nvme"]
ROWS = [*PLAIN, *(f"{who}-{kind}" for kind in STAGES for who in ("peer", "ours"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", default=None)
    parser.add_argument("--size", default="20", choices=list(SIZES))
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop earlier at this time")
    parser.add_argument("--skip", type=int, default=2, help="first steps that do not count")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--folder", default=tempfile.gettempdir())
    parser.add_argument("--rows", nargs="+", default=ROWS, help=" ".join(ROWS))
    parser.add_argument("--worker", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
    rows = [row for row in options.rows if options.peer_python or not row.startswith("peer-")]
    contenders: dict[str, Contender] = {}
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(dir=options.folder) as options.folder:
        for index, row in enumerate(rows):
            who, _, stage = row.partition("-")
            python = options.peer_python if who == "peer" else sys.executable
            port = 29000 + (os.getpid() * 31 + index) % 2000
            try:
                contenders[row] = Contender(python, stage or who, options, port)
            except RuntimeError as error:
                print(f"{row} is left out: {error}", file=sys.stderr)
            print(f"{row}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
        for step in range(options.steps):
            if step > options.skip and time.monotonic() - begin > options.seconds:
                break
            for contender in contenders.values():
                contender.step()
            print(f"step {step}: {time.monotonic() - begin:.0f} s", file=sys.stderr)
        for contender in contenders.values():
            contender.end()
    report(contenders, options)
    if "ours-3-cpu" in contenders and "ours-3-nvme" in contenders:
        same = contenders["ours-3-cpu"].losses == contenders["ours-3-nvme"].losses
        print(
            f"\nLosses of ours 3-cpu and 3-nvme are {'equal' if same else 'NOT equal'} in all bits."
        )


def report(contenders: dict[str, Contender], options: argparse.Namespace) -> None:
    """The table: medians over steps, ratios to DDP and to the same row of the reference."""
    print(f"GPT {options.size} M, {options.dtype}, {options.ranks} processes of one thread\n")
    print(
        "| variant | step s | / DDP | / ref. | CPU s | / DDP | / ref. | MB | / ref. | last loss |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    measured = {
        row: [
            statistics.median(contender.times[options.skip :]),
            statistics.median(contender.busy[options.skip :]),
            contender.peak,
        ]
        for row, contender in contenders.items()
    }
    nothing = [float("nan")] * 3
    for row, (step, busy, peak) in measured.items():
        who, _, stage = row.partition("-")
        ddp = measured.get("ddp", nothing)
        peer = measured.get(f"peer-{stage}", nothing) if who == "ours" else nothing
        name = row.replace("peer-", "reference ").replace("ours-", "ours ")
        cells = [name, f"{step:.3f}", f"{step / ddp[0]:.2f}", f"{step / peer[0]:.2f}"]
        cells += [f"{busy:.3f}", f"{busy / ddp[1]:.2f}", f"{busy / peer[1]:.2f}"]
        cells += [f"{peak:.0f}", f"{peak / peer[2]:.2f}", f"{contenders[row].losses[-1]:.5f}"]
        print(f"| {' | '.join(cells).replace('nan', '')} |")


if __name__ == "__main__":
    if not Path(__file__).exists():
        raise SystemExit("run me as a file")
    main()
