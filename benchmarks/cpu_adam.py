"""Adam steps in CPU memory: ours, torch's foreach and fused, the deepspeed release's, the floor.

    python benchmarks/cpu_adam.py --peer-python /path/to/env/bin/python

All contenders take turns within one run, in a new order each round, and ratios are medians over
the rounds of the ratio within a round. Each has tensors of its own, allocated by torch as a program
would (torch's two share parameter and gradient): ours then moves what it steps onto huge pages,
which is part of what it does. The floor is a bare loop over our memory with the same reads and
writes and one addition a number, compiled beside our kernels; "floor 4K" is the same loop over
torch's memory. Triad is `torch.add(b, c, alpha=s, out=a)`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import torch

CASES = {"fp32": 28, "bf16 grads, fp32 master, bf16 copy": 28, "bf16 parameters": 22}
SETTINGS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
WARM_LIMIT = 50_000_000
"""Up to this size a step that is not timed goes before: caches then hold what they can."""

Step = Callable[[], object]


class Problem:
    """The tensors of one case: parameter, gradient, and what a training loop adds to them."""

    def __init__(self, case: str, count: int) -> None:
        low = case != "fp32"
        self.case = case
        self.param = torch.ones(count, dtype=torch.bfloat16 if "param" in case else torch.float32)
        self.grad = torch.full((count,), 1e-3, dtype=torch.bfloat16 if low else torch.float32)
        self.wide = torch.empty(count) if "master" in case else None
        self.copy = torch.empty(count, dtype=torch.bfloat16) if "master" in case else None

    def parameter(self) -> torch.nn.Parameter:
        param = torch.nn.Parameter(self.param)
        param.grad = self.grad if self.wide is None else self.wide
        return param

    def around(self, step: Step) -> Step:
        """What an optimizer without mixed types needs before and after: widen, step, narrow."""
        if self.wide is None or self.copy is None:
            return step
        wide, copy = self.wide, self.copy

        def whole() -> None:
            wide.copy_(self.grad)
            step()
            copy.copy_(self.param)

        return whole


def ours(problem: Problem) -> tuple[Step, Step]:
    """Our step, and the bare loop over the same memory."""
    from ds_kernels import CPUAdam, flat

    param = torch.nn.Parameter(problem.param)
    optimizer = CPUAdam([param], **SETTINGS)
    param.grad = torch.zeros_like(param)
    optimizer.step()  # makes the moments
    param.grad = problem.grad if problem.copy is None else None
    moments = {name: optimizer.state[param][name] for name in ("exp_avg", "exp_avg_sq")}
    if problem.copy is None:
        step: Step = optimizer.step
    else:  # what an offload engine does: gradients of another type than the master, and a copy
        fixed = {"out": problem.copy, "hyper": SETTINGS, "step": 2, "grad_scale": 1.0}
        flat_step, *buffers = flat.adamw(), problem.param, problem.grad, moments
        step = lambda: flat_step(*buffers, **fixed).wait()  # noqa: E731
    for _ in range(3):  # moves what stays in place onto huge pages
        step()
    return step, bare(problem, tuple(moments.values()))


def bare(problem: Problem, moments: tuple[torch.Tensor, ...]) -> Step:
    """The loop that only moves the memory of a step."""
    from ds_kernels import _native, backend
    from ds_kernels.lanes import Lane, row_of

    names = ("m", "v")[: len(moments)]
    lane = Lane(problem.param, problem.grad, moments, problem.copy, "", names)
    loop = _native.bare2 if len(moments) == 2 else _native.bare1
    level = backend.select().name
    # The addresses are taken anew at each call: the lane is what keeps the memory alive.
    return lambda: loop([row_of(lane)], [1e-9], level, torch.get_num_threads())


def torchs(problem: Problem, **kind: bool) -> tuple[Step, Step]:
    """torch's step, and the bare loop over its memory (float32 moments beside it)."""
    param = problem.parameter()
    step = problem.around(torch.optim.AdamW([param], **SETTINGS, **kind).step)
    return step, bare(problem, (torch.zeros(param.numel()), torch.zeros(param.numel())))


def triad(count: int) -> Step:
    a, b, c = (torch.ones(count) for _ in range(3))
    return lambda: torch.add(b, c, alpha=0.5, out=a)


class Peer:
    """The release's CPU Adam in its own interpreter, one step a line."""

    def __init__(self, python: str) -> None:
        command = [python, __file__, "--serve"]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, line: str) -> float:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        for answer in self.process.stdout:
            if answer.startswith("took "):
                return float(answer.split()[1])
        raise SystemExit("the peer's process ended")

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def serve() -> None:
    """The loop of the peer's process."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    step: Step = lambda: None  # noqa: E731
    for line in sys.stdin:
        verb, *rest = line.strip().split("|")
        start = time.perf_counter()
        if verb == "make":
            step = lambda: None  # noqa: E731  # frees the last problem first
            problem = Problem(rest[0], int(rest[1]))
            optimizer = DeepSpeedCPUAdam([problem.parameter()], **SETTINGS)
            step = problem.around(optimizer.step)
            step()
        elif verb == "threads":
            torch.set_num_threads(int(rest[0]))
        else:
            step()
        print("took", time.perf_counter() - start, flush=True)


def timed(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


Times = dict[str, list[float]]


def rounds(contenders: dict[str, Callable[[], float]], repeats: int, warm: bool) -> Times:
    """Seconds of each contender in each round; the first round is thrown away."""
    times: Times = {name: [] for name in contenders}
    order = random.Random(0)
    for repeat in range(repeats + 1):
        for name in order.sample(list(contenders), len(contenders)):
            time.sleep(0.02)  # idle threads of the one before stop spinning
            if warm:
                contenders[name]()
            seconds = contenders[name]()
            if repeat:  # the first round makes moments and touches pages
                times[name].append(seconds)
    return times


def ratio(times: Times, name: str, other: str = "ours") -> float:
    """How many times as long `name` took: the median over the rounds."""
    return statistics.median(a / b for a, b in zip(times[name], times[other], strict=True))


def best_rival(times: Times) -> tuple[float, str]:
    others = [name for name in times if name != "ours" and not name.startswith("floor")]
    return min((ratio(times, name), name) for name in others)


def measure(case: str, count: int, threads: list[int], repeats: int, peer: Peer | None) -> None:
    our_step, floor = ours(Problem(case, count))
    theirs = Problem(case, count)
    foreach, _ = torchs(theirs, foreach=True)
    fused, plain_floor = torchs(theirs, fused=True)
    steps = {"floor": floor, "floor 4K": plain_floor, "ours": our_step}
    steps |= {"torch foreach": foreach, "torch fused": fused}
    contenders = {name: partial(timed, step) for name, step in steps.items()}
    if peer is not None:
        peer.ask(f"make|{case}|{count}")
        contenders["deepspeed"] = partial(peer.ask, "step")
    for number in threads:
        torch.set_num_threads(number)
        if peer is not None:
            peer.ask(f"threads|{number}")
        print_row(case, count, number, rounds(contenders, repeats, count <= WARM_LIMIT))


def print_row(case: str, count: int, threads: int, times: Times) -> None:
    moved = CASES[case] * count / 1e9 / statistics.median(times["ours"])
    best, name = best_rival(times)
    print(
        f"| {case} | {count // 10**6} M | {threads} | "
        + " | ".join(f"{statistics.median(seconds) * 1e3:.1f}" for seconds in times.values())
        + f" | {moved:.1f} | {ratio(times, 'floor'):.2f} | {best:.2f} ({name}) |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", help="interpreter of an environment with deepspeed")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 50, 200], help="million")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    peer = Peer(options.peer_python) if options.peer_python else None
    for number in options.threads:
        torch.set_num_threads(number)
        step = triad(50_000_000)
        step()
        seconds = statistics.median(timed(step) for _ in range(options.repeats))
        print(f"triad, {number} threads: {0.6 / seconds:.1f} GB/s (12 bytes a number)")
    names = ["floor", "floor 4K", "ours", "torch foreach", "torch fused"] + ["deepspeed"] * bool(
        peer
    )
    print(f"torch {torch.__version__}; medians in ms of {options.repeats} interleaved steps\n")
    heads = ["case", "size", "threads", *names, "ours GB/s", "of floor", "best rival / ours"]
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|", flush=True)
    for size in options.sizes:
        for case in options.cases:
            measure(case, size * 10**6, options.threads, options.repeats, peer)
    if peer:
        peer.close()


if __name__ == "__main__":
    main()
