"""One stage of one contestant: trains a pipeline, some steps each time it is told to.

Runs in any environment: it imports torch, and of the contestants only the one asked for. The
model, the data and the optimizer are the same for all. A number of steps comes on the standard
input of the first stage, which answers with a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import time
from pathlib import Path

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


def batch(args):
    import torch

    torch.manual_seed(1)
    shape = (args.rows, args.length, args.width)
    return [(torch.randn(shape), torch.randn(shape)) for _ in range(args.micro_batches)]


def adamw(params):
    import torch

    return torch.optim.AdamW(params, lr=1e-3)


def make_ours(args):
    from ds_core.groups import make_groups
    from ds_core.optimizers import parameter_groups
    from ds_core.precision import PrecisionSettings
    from ds_core.replicated import Replicated
    from ds_pipeline import LayerSpec, PipelineEngine, PipelineModule, PipelineSettings

    chunks = 2 if args.schedule == "interleaved" else 1
    specs = [LayerSpec(block(args.width)) for _ in range(args.layers)]
    module = PipelineModule(
        specs, args.stages, loss_fn=loss_fn, seed_layers=True, base_seed=7, chunks=chunks,
        partition_method="uniform", seed_fn=seed_while_built(),
    )  # fmt: skip
    groups = make_groups(module.grid)
    strategy = Replicated(
        module, parameter_groups(module.parameters()), adamw, groups=groups,
        precision=PrecisionSettings(),
    )  # fmt: skip
    engine = PipelineEngine(
        module, strategy, groups=groups, accumulation_steps=args.micro_batches,
        pipeline=PipelineSettings(args.schedule, record=True),
    )  # fmt: skip
    module.seed_layers = False
    data = batch(args)

    def step():
        return float(engine.train_batch(iter(data)))

    def bubble():
        return engine.recorded()

    return step, bubble


def seed_while_built():
    import torch

    return torch.manual_seed


def make_torch(args):
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
    kind, chunks = kinds[args.schedule]
    stages, rank = args.stages, args.rank
    total = stages * chunks
    places = [rank + chunk * stages for chunk in range(chunks)]
    if args.schedule == "zbv":
        places = [rank, total - 1 - rank]
    pieces, parts = [], []
    for place in places:
        layers = []
        for index in range(place * args.layers // total, (place + 1) * args.layers // total):
            torch.manual_seed(7 + index)
            layers.append(block(args.width)())
        parts.append(nn.Sequential(*layers))
        pieces.append(pipelining.PipelineStage(parts[-1], place, total, torch.device("cpu")))
    single = args.schedule in ("gpipe", "1f1b")
    runner = kind(pieces[0] if single else pieces, args.micro_batches, loss_fn=loss_fn)
    optimizer = adamw([param for part in parts for param in part.parameters()])
    data = batch(args)
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


def make_peer(args):
    import deepspeed
    from deepspeed.pipe import LayerSpec, PipelineModule

    deepspeed.init_distributed("gloo")

    specs = [LayerSpec(block(args.width)) for _ in range(args.layers)]
    module = PipelineModule(
        specs, num_stages=args.stages, loss_fn=loss_fn, seed_layers=True, base_seed=7,
        partition_method="uniform",
    )  # fmt: skip
    module.seed_layers = False
    config = {
        "train_micro_batch_size_per_gpu": args.rows,
        "gradient_accumulation_steps": args.micro_batches,
        "steps_per_print": 10**9,
        "gradient_clipping": 0.0,
    }
    engine, *_ = deepspeed.initialize(
        model=module, config=config, optimizer=adamw(module.parameters())
    )
    data = batch(args)

    def step():
        return float(engine.train_batch(data_iter=iter(data)))

    return step, None


MAKE = {"ours": make_ours, "torch": make_torch, "peer": make_peer}


def work(args):
    """One process of one contestant: waits for its turn, runs steps, answers."""
    import torch
    import torch._dynamo  # or the first step of an optimizer does, and counts as memory
    import torch.distributed as dist

    torch.set_num_threads(1)
    start = {"init_method": f"file://{args.store}", "rank": args.rank, "world_size": args.stages}
    dist.init_process_group("gloo", **start)
    step, recorded = MAKE[args.contestant](args)
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
        used = (time.process_time() - cpu) / (time.perf_counter() - wall)
        timeline = recorded() if recorded is not None else None
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        everyone = [None] * args.stages
        dist.all_gather_object(everyone, (losses, times, used, grown))
        found = {
            "losses": next(entry[0] for entry in reversed(everyone) if entry[0][0] is not None),
            "times": [max(column) for column in zip(*(e[1] for e in everyone), strict=True)],
            "idle": 1 - sum(entry[2] for entry in everyone) / min(args.stages, os.cpu_count()),
            "memory": max(entry[3] for entry in everyone),
            "bubble": bubble_of(timeline, int(turn[0])) if timeline is not None else None,
            "as_timed": as_timed(timeline, int(turn[0])) if timeline is not None else None,
            "costs": costs_of(timeline) if timeline is not None else None,
        }
        if timeline is not None and args.rank == 0 and args.pictures:
            save_recording(timeline, args, int(turn[0]))
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


def as_timed(timeline, steps):
    """The same if messages took no time, but each computation as long as it did."""
    return statistics.median(
        idle_without_messages(chosen, timeline.stages) for chosen in steps_of(timeline, steps)
    )


def idle_without_messages(spans, stages):
    """The idle share of a step in which a computation starts as soon as its input is made."""
    place = {id(span): span.chunk * stages + span.stage for span in spans}
    last = max(place.values())
    queues = [
        sorted((s for s in spans if s.stage == n), key=lambda s: s.start) for n in range(stages)
    ]
    clocks, done = [0.0] * stages, {}
    while any(queues):
        before = len(done)
        for stage, queue in enumerate(queues):
            while queue:
                span, where = queue[0], place[id(queue[0])]
                forward = span.kind == "ForwardPass"
                source = where - 1 if forward else where + 1
                outside = source < 0 or source > last or span.kind == "BackwardWeight"
                needed = None if outside else (forward, source, span.micro_batch)
                if needed is not None and needed not in done:
                    break
                begin = max(clocks[stage], 0.0 if needed is None else done[needed])
                clocks[stage] = begin + span.stop - span.start
                kind = forward if span.kind != "BackwardWeight" else "weight"
                done[kind, where, span.micro_batch] = clocks[stage]
                queue.pop(0)
        if len(done) == before:
            raise RuntimeError("computations that wait for each other")
    return 1 - sum(span.stop - span.start for span in spans) / (max(clocks) * stages)


def costs_of(timeline):
    """The median time of each kind of computation, in ms."""
    by_kind = {}
    for span in timeline.spans:
        by_kind.setdefault(span.kind, []).append((span.stop - span.start) * 1e3)
    return {kind: statistics.median(times) for kind, times in by_kind.items()}


def save_recording(timeline, args, steps):
    """The last step of a turn; pictures are drawn elsewhere, to load nothing here."""
    from ds_pipeline import Span, Timeline
    from ds_pipeline.recording import write_recording

    chosen = list(steps_of(timeline, steps))[-1]
    origin = min(span.start for span in chosen)
    moved = [
        Span(s.stage, s.kind, s.micro_batch, s.chunk, s.start - origin, s.stop - origin)
        for s in chosen
    ]
    name = Path(args.pictures) / f"{args.schedule}-{args.stages}.json"
    write_recording(Timeline(moved, args.stages, unit="s"), name)


def answer(rank, value):
    if rank == 0:
        os.write(1, f"\n{MARK}{json.dumps(value)}\n".encode())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("contestant", "schedule", "store", "pictures"):
        parser.add_argument(f"--{name}")
    for name in ("stages", "rank", "width", "micro-batches", "layers", "rows", "length"):
        parser.add_argument(f"--{name}", type=int)
    work(parser.parse_args())
