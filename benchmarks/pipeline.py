"""Step time, idle share and memory of pipelines: ours, torch.distributed.pipelining, the peer.

    python benchmarks/pipeline.py --stages 2 --peer-python PATH

Every contestant is a group of processes that stays up; they take turns, a few steps each, so that
whatever else the machine does meets all of them. Idle is the share of the cores' time that the
stages do not use, from the same clocks for all (with more stages than cores, of all cores); ours
is also recorded and drawn, which says something where every stage has a core.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WORKER = Path(__file__).resolve().parent / "workers" / "pipeline.py"
LAYERS, ROWS, LENGTH = 8, 4, 128
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
MARK = "@answer "


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
                python, str(WORKER), "--contestant", contestant, "--schedule", schedule,
                "--stages", str(args.stages), "--rank", str(rank), "--store", str(store),
                "--width", str(args.width), "--micro-batches", str(args.micro_batches),
                "--layers", str(LAYERS), "--rows", str(ROWS), "--length", str(LENGTH),
                "--pictures", args.pictures or "",
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
    """The rounds of all contestants, by name, over several launches of their processes."""
    chosen = [c for c in CONTESTANTS if c[0] != "peer" or args.peer_python]
    if args.only:
        chosen = [c for c in chosen if c[0] in args.only or " ".join(c) in args.only]
    rounds = {" ".join(contestant): [] for contestant in chosen}
    began = time.monotonic()
    for launch in range(args.launches):
        until = began + args.budget * (launch + 1) / args.launches
        with tempfile.TemporaryDirectory() as folder:
            for name, found in take_turns(chosen, args, folder, until):
                rounds[name].append(found)
    return {name: found for name, found in rounds.items() if found}


def take_turns(chosen, args, folder, until):
    """One launch: (name, what it found) of each turn, at least one round of them."""
    groups = []
    try:
        for contestant, schedule in chosen:
            groups.append(Group(contestant, schedule, args, folder))
        for group in tuple(groups):
            try:
                group.wait()
                group.turn(2)
            except RuntimeError as error:
                print(f"left out: {error}", file=sys.stderr)
                group.end()
                groups.remove(group)
        for number in range(args.rounds):
            if number and time.monotonic() > until:
                return
            for group in groups:
                yield group.name, group.turn(args.steps)
    finally:
        for group in groups:
            group.end()


def theory(schedule, args, found=None):
    """The schedule's own idle share, with the costs of a run, or with equal ones."""
    from ds_pipeline import plan, simulate
    from ds_pipeline.simulate import Costs

    known = {"gpipe", "1f1b", "zb-h1", "interleaved"}
    if schedule not in known:
        return None
    chunks = 2 if schedule == "interleaved" else 1
    sizes = (args.stages, args.micro_batches)
    plans = [plan(schedule, stage, *sizes, chunks=chunks) for stage in range(args.stages)]
    costs = Costs()
    if found is not None:
        kinds = ("ForwardPass", "BackwardInput", "BackwardWeight", "BackwardPass")
        times = [statistics.median(r["costs"].get(kind, 0.0) for r in found) for kind in kinds]
        costs = Costs(times[0], times[1], times[2], whole=times[3])
    return simulate(plans, costs, chunks=chunks).bubble


def report(rounds, args):
    reference = statistics.median(t for r in rounds["ours 1f1b"] for t in r["times"])
    print(
        f"{args.stages} stages, {LAYERS} blocks of width {args.width}, {args.micro_batches} "
        f"micro-batches of {ROWS} x {LENGTH}; {args.launches} launches, "
        f"{len(rounds['ours 1f1b'])} rounds of {args.steps} steps; "
        f"{os.cpu_count()} cores, {platform.processor() or platform.machine()}\n"
    )
    heads = ("step (ms)", "/ ours 1f1b", "idle by CPU", "recorded", "as timed", "own", "formula")
    heads += ("MiB",)
    print(f"| contestant | {' | '.join(heads)} |")
    print("| --- |" + " ---: |" * len(heads))
    for name, found in rounds.items():
        step = statistics.median(t for r in found for t in r["times"])
        idle = statistics.median(r["idle"] for r in found)
        memory = max(r["memory"] for r in found)
        bubbles = [r["bubble"] for r in found if r["bubble"] is not None]
        own = theory(name.split()[1], args, found) if bubbles else None
        timed = statistics.median(r["as_timed"] for r in found) if bubbles else None
        shares = (statistics.median(bubbles) if bubbles else None, timed, own)
        shares = (idle, *shares, theory(name.split()[1], args))
        cells = ["" if share is None else f"{share:.1%}" for share in shares]
        print(
            f"| {name} | {step * 1e3:.1f} | {step / reference:.3f} | {' | '.join(cells)} "
            f"| {memory:.0f} |"
        )
    losses = sorted({found[-1]["losses"][-1] for found in rounds.values()})
    print(f"\nlast losses: {losses[0]:.4f} to {losses[-1]:.4f}")


def draw_pictures(folder, stages):
    """Each recording of the run."""
    from ds_pipeline.draw import draw
    from ds_pipeline.recording import read_recording

    for path in sorted(folder.glob(f"*-{stages}.json")):
        schedule = path.stem.removesuffix(f"-{stages}")
        draw(read_recording(path), path.with_suffix(".png"), f"recorded, {schedule}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--launches", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7, help="at most, a launch")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--peer-python", default="")
    parser.add_argument("--budget", type=float, default=170.0, help="seconds for new rounds")
    parser.add_argument(
        "--only", nargs="*", help="of whom or what: ours, 'torch 1f1b'; default all"
    )
    parser.add_argument("--pictures", default="", help="folder for recorded runs")
    args = parser.parse_args()
    report(measure(args), args)
    if args.pictures:
        draw_pictures(Path(args.pictures), args.stages)


if __name__ == "__main__":
    main()
