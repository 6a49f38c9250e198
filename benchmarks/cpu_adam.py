"""Adam steps in CPU memory: ours, torch's foreach and fused, the deepspeed release's, the floor.

    python benchmarks/cpu_adam.py --peer-python /path/to/env/bin/python

All contenders take turns within one run, each on its own moments. The floor is a bare loop with the
same reads and writes and one addition a number, compiled beside our kernels; triad is
`torch.add(b, c, alpha=s, out=a)` over the same number of floats.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch

CASES = {"fp32": 28, "bf16 grads, fp32 master, bf16 copy": 28, "bf16 parameters": 22}
SETTINGS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
CODES = {torch.float32: 0, torch.bfloat16: 1}

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
    from ds_kernels import CPUAdam, _native, adam_step, backend
    from ds_kernels.lanes import Lane, row_of

    param = torch.nn.Parameter(problem.param)
    optimizer = CPUAdam([param], **SETTINGS)
    param.grad = torch.zeros_like(param)
    optimizer.step()  # makes the moments
    moments = [optimizer.state[param][name] for name in ("exp_avg", "exp_avg_sq")]
    lane = Lane(problem.param, problem.grad, tuple(moments), problem.copy, "", ("m", "v"))
    row, level = row_of(lane), backend.select().name

    def step() -> None:
        if problem.copy is None:
            param.grad = problem.grad
            optimizer.step()
        else:  # the step of an offload engine: gradients of another type than the master
            adam_step(problem.param, problem.grad, *moments, problem.copy, step=2, **SETTINGS)

    return step, lambda: _native.bare2([row], [1e-9], level, torch.get_num_threads())


def torchs(problem: Problem, **kind: bool) -> Step:
    return problem.around(torch.optim.AdamW([problem.parameter()], **SETTINGS, **kind).step)


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
        elif verb == "threads":
            torch.set_num_threads(int(rest[0]))
        else:
            step()
        print("took", time.perf_counter() - start, flush=True)


def timed(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def measure(case: str, count: int, threads: list[int], repeats: int, peer: Peer | None) -> None:
    problem = Problem(case, count)
    our_step, floor = ours(problem)
    contenders: dict[str, Callable[[], float]] = {
        "floor": lambda: timed(floor),
        "ours": lambda: timed(our_step),
    }
    foreach, fused = torchs(problem, foreach=True), torchs(problem, fused=True)
    contenders["torch foreach"] = lambda: timed(foreach)
    contenders["torch fused"] = lambda: timed(fused)
    if peer is not None:
        peer.ask(f"make|{case}|{count}")
        contenders["deepspeed"] = lambda: peer.ask("step")
    for number in threads:
        torch.set_num_threads(number)
        if peer is not None:
            peer.ask(f"threads|{number}")
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for repeat in range(repeats + 1):
            for name, contender in contenders.items():
                time.sleep(0.02)  # idle threads of the one before stop spinning
                seconds = contender()
                if repeat:  # the first round makes moments and touches pages
                    times[name].append(seconds)
        print_rows(case, count, number, {n: statistics.median(t) for n, t in times.items()})


def print_rows(case: str, count: int, threads: int, medians: dict[str, float]) -> None:
    moved = CASES[case] * count / 1e9
    best = min(t for name, t in medians.items() if name not in ("floor", "ours"))
    print(
        f"| {case} | {count // 10**6} M | {threads} | "
        + " | ".join(f"{seconds * 1e3:.1f}" for seconds in medians.values())
        + f" | {moved / medians['ours']:.1f} | {medians['floor'] / medians['ours']:.2f}"
        + f" | {best / medians['ours']:.2f} |",
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
        seconds = statistics.median(timed(step) for _ in range(options.repeats))
        print(f"triad, {number} threads: {0.6 / seconds:.1f} GB/s (12 bytes a number)")
    names = ["floor", "ours", "torch foreach", "torch fused"] + ["deepspeed"] * bool(peer)
    print(f"torch {torch.__version__}; medians in ms of {options.repeats} interleaved steps\n")
    heads = ["case", "size", "threads", *names, "ours GB/s", "of floor", "best other / ours"]
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|", flush=True)
    for size in options.sizes:
        for case in options.cases:
            measure(case, size * 10**6, options.threads, options.repeats, peer)
    if peer:
        peer.close()


if __name__ == "__main__":
    main()
