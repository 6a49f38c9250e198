"""Step time, idle share and memory of pipelines: ours, torch.distributed.pipelining, the peer.

    python benchmarks/pipeline.py --stages 2 --peer-python PATH

Every contestant is a group of processes that stays up; they take turns, a few steps each, so that
whatever else the machine does meets all of them. Idle is the share of time in which a stage's
process uses no CPU, from the same clocks for all; ours is also recorded and drawn.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve()
CONTESTANTS = [
    ("ours", "gpipe"),
    ("ours", "1f1b"),
    ("ours", "interleaved"),
    ("ours", "zb-h1"),
    ("torch", "gpipe"),
    ("torch", "1f1b"),
    ("torch", "interleaved"),
    ("torch", "zero-bubble"),
    ("torch", "zbv"),
    ("peer", "1f1b"),
]
LAYERS, MICRO_BATCHES, ROWS, LENGTH = 8, 8, 4, 128
MARK = "@answer "


def block(width):
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, hidden):
            parts = self.mix(self.norm1(hidden)).chunk(3, dim=-1)
            q, k, v = (p.view(*p.shape[:2], 4, -1).transpose(1, 2) for p in parts)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            hidden = hidden + self.out(mixed.transpose(1, 2).flatten(2))
            return hidden + self.down(torch.relu(self.up(self.norm2(hidden))))

    return Block


def loss_fn(output, target):
    return (output - target).square().mean()


def micro_batches(width):
    import torch

    torch.manual_seed(1)
    return [
        (torch.randn(ROWS, LENGTH, width), torch.randn(ROWS, LENGTH, width))
        for _ in range(MICRO_BATCHES)
    ]


def adamw(params):
    import torch

    return torch.optim.AdamW(params, lr=1e-3)


def make_ours(schedule, stages, rank, width):
    from ds_core.groups import make_groups
    from ds_core.optimizers import parameter_groups
    from ds_core.precision import PrecisionSettings
    from ds_core.replicated import Replicated
    from ds_pipeline import LayerSpec, PipelineEngine, PipelineModule, PipelineSettings

    chunks = 2 if schedule == "interleaved" else 1
    specs = [LayerSpec(block(width)) for _ in range(LAYERS)]
    module = PipelineModule(
        specs, stages, loss_fn=loss_fn, seed_layers=True, base_seed=7, chunks=chunks,
        partition_method="uniform", seed_fn=seed_while_built(),
    )  # fmt: skip
    groups = make_groups(module.grid)
    strategy = Replicated(
        module, parameter_groups(module.parameters()), adamw, groups=groups,
        precision=PrecisionSettings(),
    )  # fmt: skip
    engine = PipelineEngine(
        module, strategy, groups=groups, accumulation_steps=MICRO_BATCHES,
        pipeline=PipelineSettings(schedule, record=True),
    )  # fmt: skip
    module.seed_layers = False
    data = micro_batches(width)

    def step():
        return float(engine.train_batch(iter(data)))

    def bubble():
        return engine.recorded()

    return step, bubble


def seed_while_built():
    import torch

    return torch.manual_seed


def make_torch(schedule, stages, rank, width):
    import torch
    from torch import nn
    from torch.distributed import pipelining

    kinds = {
        "gpipe": (pipelining.ScheduleGPipe, 1),
        "1f1b": (pipelining.Schedule1F1B, 1),
        "interleaved": (pipelining.ScheduleInterleaved1F1B, 2),
        "zero-bubble": (pipelining.ScheduleInterleavedZeroBubble, 1),
        "zbv": (pipelining.ScheduleZBVZeroBubble, 2),
    }
    kind, chunks = kinds[schedule]
    total = stages * chunks
    places = [rank + chunk * stages for chunk in range(chunks)]
    if schedule == "zbv":
        places = [rank, total - 1 - rank]
    pieces, parts = [], []
    for place in places:
        layers = []
        for index in range(place * LAYERS // total, (place + 1) * LAYERS // total):
            torch.manual_seed(7 + index)
            layers.append(block(width)())
        parts.append(nn.Sequential(*layers))
        pieces.append(pipelining.PipelineStage(parts[-1], place, total, torch.device("cpu")))
    single = schedule in ("gpipe", "1f1b")
    runner = kind(pieces[0] if single else pieces, MICRO_BATCHES, loss_fn=loss_fn)
    optimizer = adamw([param for part in parts for param in part.parameters()])
    data = micro_batches(width)
    inputs, targets = (torch.cat(tensors) for tensors in zip(*data, strict=True))

    def step():
        losses = []
        arguments = [inputs] if 0 in places else []
        last = total - 1 in places
        keywords = {"target": targets, "losses": losses} if last else {}
        runner.step(*arguments, **keywords)
        optimizer.step()
        optimizer.zero_grad()
        return float(torch.stack(losses).mean()) if losses else None

    return step, None


def make_peer(schedule, stages, rank, width):
    import deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule

    deepspeed.init_distributed("gloo")

    specs = [LayerSpec(block(width)) for _ in range(LAYERS)]
    module = PipelineModule(
        specs, num_stages=stages, loss_fn=loss_fn, seed_layers=True, base_seed=7,
        partition_method="uniform",
    )  # fmt: skip
    module.seed_layers = False
    config = {
        "train_micro_batch_size_per_gpu": ROWS,
        "gradient_accumulation_steps": MICRO_BATCHES,
        "steps_per_print": 10**9,
        "gradient_clipping": 0.0,
    }
    engine, *_ = deepspeed.initialize(
        model=module, config=config, optimizer=adamw(module.parameters())
    )
    data = micro_batches(width)

    def step():
        return float(engine.train_batch(data_iter=iter(data)))

    return step, None


def work(args):
    """One process of one contestant: waits for its turn, runs steps, answers."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    start = {"init_method": f"file://{args.store}", "rank": args.rank, "world_size": args.stages}
    dist.init_process_group("gloo", **start)
    make = {"ours": make_ours, "torch": make_torch, "peer": make_peer}[args.contestant]
    step, recorded = make(args.schedule, args.stages, args.rank, args.width)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer(args.rank, {"ready": True})
    while True:
        turn = [sys.stdin.readline().strip() if args.rank == 0 else None]
        dist.broadcast_object_list(turn, src=0)
        if not turn[0]:
            return
        dist.barrier()
        losses, times = [], []
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(int(turn[0])):
            began = time.perf_counter()
            losses.append(step())
            times.append(time.perf_counter() - began)
        idle = 1 - (time.process_time() - cpu) / (time.perf_counter() - wall)
        timeline = recorded() if recorded is not None else None
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        everyone = [None] * args.stages
        dist.all_gather_object(everyone, (losses, times, idle, grown))
        found = {
            "losses": next(entry[0] for entry in reversed(everyone) if entry[0][0] is not None),
            "times": [max(column) for column in zip(*(e[1] for e in everyone), strict=True)],
            "idle": statistics.mean(entry[2] for entry in everyone),
            "memory": max(entry[3] for entry in everyone),
            "bubble": bubble_of(timeline, int(turn[0])) if timeline is not None else None,
        }
        if timeline is not None and args.rank == 0 and args.pictures:
            save_picture(timeline, args, int(turn[0]))
        answer(args.rank, found)


def steps_of(timeline, steps):
    """The spans of each step: every stage does the same number of computations a step."""
    by_stage = {}
    for span in timeline.spans:
        by_stage.setdefault(span.stage, []).append(span)
    for number in range(steps):
        chosen = []
        for spans in by_stage.values():
            share = len(spans) // steps
            chosen += spans[number * share : (number + 1) * share]
        yield chosen


def bubble_of(timeline, steps):
    """The median idle share over the steps of a turn."""
    from ds_pipeline import Timeline

    return statistics.median(
        Timeline(chosen, timeline.stages).bubble for chosen in steps_of(timeline, steps)
    )


def save_picture(timeline, args, steps):
    """The last step of a turn, as JSON and PNG."""
    from ds_pipeline import Span, Timeline
    from ds_pipeline.draw import draw
    from ds_pipeline.recording import write_recording

    chosen = list(steps_of(timeline, steps))[-1]
    origin = min(span.start for span in chosen)
    moved = [
        Span(s.stage, s.kind, s.micro_batch, s.chunk, s.start - origin, s.stop - origin)
        for s in chosen
    ]
    name = Path(args.pictures) / f"{args.schedule}-{args.stages}"
    write_recording(Timeline(moved, args.stages), name.with_suffix(".json"))
    draw(Timeline(moved, args.stages), name.with_suffix(".png"), f"recorded, {args.schedule}")


def answer(rank, value):
    if rank == 0:
        os.write(1, f"\n{MARK}{json.dumps(value)}\n".encode())


class Group:
    """The processes of one contestant."""

    def __init__(self, contestant, schedule, args, folder):
        self.name = f"{contestant} {schedule}"
        python = args.peer_python if contestant == "peer" else sys.executable
        store = Path(folder) / self.name.replace(" ", "-")
        self.processes = []
        self.log = open(f"{store}.log", "w")  # noqa: SIM115  (lives as long as the processes)
        env = os.environ | {
            "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "WORLD_SIZE": str(args.stages),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29611", "DS_BUILD_OPS": "0",
        }  # fmt: skip
        for rank in range(args.stages):
            command = [
                python, str(HERE), "--worker", "--contestant", contestant, "--schedule", schedule,
                "--stages", str(args.stages), "--rank", str(rank), "--store", str(store),
                "--width", str(args.width), "--pictures", args.pictures or "",
            ]  # fmt: skip
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if rank == 0 else self.log,
                stderr=self.log,
                text=True,
                env=env | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            self.processes.append(process)
        self.rounds = []

    def wait(self):
        for line in self.processes[0].stdout:
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
        self.log.flush()
        tail = Path(self.log.name).read_text()[-600:]
        raise RuntimeError(f"{self.name} did not answer:\n{tail}")

    def turn(self, steps):
        self.processes[0].stdin.write(f"{steps}\n")
        self.processes[0].stdin.flush()
        return self.wait()

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()


def measure(args):
    """All contestants in turn; returns the groups with their rounds."""
    began = time.monotonic()
    chosen = [c for c in CONTESTANTS if c[0] != "peer" or args.peer_python]
    chosen = [c for c in chosen if not args.only or c[0] in args.only]
    with tempfile.TemporaryDirectory() as folder:
        groups = []
        try:
            for contestant, schedule in chosen:
                group = Group(contestant, schedule, args, folder)
                try:
                    group.wait()
                    group.first = group.turn(2)
                except RuntimeError as error:
                    print(f"left out: {error}", file=sys.stderr)
                    group.end()
                    continue
                groups.append(group)
            for number in range(args.rounds):
                if number and time.monotonic() - began > args.budget:
                    break
                for group in groups:
                    group.rounds.append(group.turn(args.steps))
        finally:
            for group in groups:
                group.end()
    return groups


def theory(schedule, stages):
    """The schedule's own idle share, with forward : inputs : weights as 1 : 1 : 1."""
    from ds_pipeline import plan, simulate

    known = {"gpipe", "1f1b", "zb-h1", "interleaved"}
    if schedule not in known:
        return None
    chunks = 2 if schedule == "interleaved" else 1
    plans = [plan(schedule, s, stages, MICRO_BATCHES, chunks=chunks) for s in range(stages)]
    return simulate(plans, chunks=chunks).bubble


def report(groups, args):
    base = next(g for g in groups if g.name == "ours 1f1b")
    reference = statistics.median(t for r in base.rounds for t in r["times"])
    print(
        f"{args.stages} stages, {LAYERS} blocks of width {args.width}, {MICRO_BATCHES} "
        f"micro-batches of {ROWS} x {LENGTH}; {len(base.rounds)} rounds of {args.steps} steps; "
        f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}\n"
    )
    print("| contestant | step (ms) | / ours 1f1b | idle by CPU | recorded | own | memory (MiB) |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for group in groups:
        step = statistics.median(t for r in group.rounds for t in r["times"])
        idle = statistics.median(r["idle"] for r in group.rounds)
        memory = max(r["memory"] for r in group.rounds)
        bubbles = [r["bubble"] for r in group.rounds if r["bubble"] is not None]
        own = theory(group.name.split()[1], args.stages)
        recorded = f"{statistics.median(bubbles):.1%}" if bubbles else ""
        print(
            f"| {group.name} | {step * 1e3:.1f} | {step / reference:.3f} | {idle:.1%} | {recorded} "
            f"| {'' if own is None else f'{own:.1%}'} | {memory:.0f} |"
        )
    losses = {f"{g.rounds[-1]['losses'][-1]:.4g}" for g in groups}
    print(f"\nlast losses: {', '.join(sorted(losses))}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--peer-python", default="")
    parser.add_argument("--budget", type=float, default=170.0, help="seconds for new rounds")
    parser.add_argument("--only", nargs="*", help="ours, torch, peer; default all")
    parser.add_argument("--pictures", default="", help="folder for recorded runs")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    for name in ("contestant", "schedule", "store"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args)
    else:
        report(measure(args), args)


if __name__ == "__main__":
    main()
