"""Adagrad, Lion, LAMB and SGD steps in CPU memory: ours, torch's forms, the floor.

    python benchmarks/cpu_optimizers.py

torch has no Lion and no LAMB: their rivals are `torch._foreach` forms as one would write them. The
deepspeed release has no CPU form of any of these on a machine without accelerator: the `load()` of
its CPUAdagradBuilder and CPULionBuilder raises "This op had not been implemented on CPU backend".
The floor is a bare loop with the reads and writes of the one-moment optimizers over memory on huge
pages, as ours is; LAMB, which must know two norms before it may step, reads parameter and moments
twice and has no such floor. Order and ratios are those of `cpu_adam.py`.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from cpu_adam import Problem, Step, Times, bare, best_rival, ratio, rounds, timed

import ds_kernels


def parameter(count: int) -> torch.nn.Parameter:
    param = torch.nn.Parameter(torch.ones(count))
    param.grad = torch.full((count,), 1e-3)
    return param


def floor(count: int) -> Step:
    """The bare loop over memory that lies as ours does."""
    problem, moment = Problem("fp32", count), torch.zeros(count)
    for tensor in (problem.param, problem.grad, moment):
        ds_kernels.to_huge_pages(tensor)
    return bare(problem, (moment,))


def foreach_lion(count: int) -> Step:
    param, grad, moment = torch.ones(count), torch.full((count,), 1e-3), torch.zeros(count)

    def step() -> None:
        direction = torch._foreach_lerp([moment], [grad], 0.1)
        torch._foreach_sign_(direction)
        torch._foreach_mul_([param], 1 - 1e-5)
        torch._foreach_add_([param], direction, alpha=-1e-3)
        torch._foreach_lerp_([moment], [grad], 0.01)

    return step


def foreach_lamb(count: int) -> Step:
    param, grad = torch.ones(count), torch.full((count,), 1e-3)
    first, second = torch.zeros(count), torch.zeros(count)

    def step() -> None:
        torch._foreach_lerp_([first], [grad], 0.1)
        torch._foreach_mul_([second], 0.999)
        torch._foreach_addcmul_([second], [grad], [grad], value=0.001)
        update = torch._foreach_sqrt([second])
        torch._foreach_add_(update, 1e-6)
        torch._foreach_reciprocal_(update)
        torch._foreach_mul_(update, [first])
        torch._foreach_add_(update, [param], alpha=0.01)
        (size,), (change,) = torch._foreach_norm([param]), torch._foreach_norm(update)
        torch._foreach_add_([param], update, alpha=-1e-3 * float(size / change))

    return step


def torchs(make: Callable[..., torch.optim.Optimizer], count: int, **settings: Any) -> Step:
    return make([parameter(count)], lr=1e-3, **settings).step


def steps_of(name: str, count: int) -> dict[str, Step]:
    if name == "adagrad":
        ours = torchs(ds_kernels.CPUAdagrad, count)
        rivals = {
            "torch foreach": torchs(torch.optim.Adagrad, count, foreach=True),
            "torch fused": torchs(torch.optim.Adagrad, count, fused=True),
        }
    elif name == "sgd momentum":
        ours = torchs(ds_kernels.CPUSGD, count, momentum=0.9)
        rivals = {
            "torch foreach": torchs(torch.optim.SGD, count, momentum=0.9, foreach=True),
            "torch fused": torchs(torch.optim.SGD, count, momentum=0.9, fused=True),
        }
    elif name == "lion":
        ours = torchs(ds_kernels.CPULion, count, weight_decay=0.01)
        rivals = {"torch foreach": foreach_lion(count)}
    else:
        ours = torchs(ds_kernels.CPULamb, count, weight_decay=0.01)
        rivals = {"torch foreach": foreach_lamb(count)}
    return {"ours": ours, **rivals, **({} if name == "lamb" else {"floor": floor(count)})}


def row(name: str, count: int, threads: int, times: Times) -> str:
    cells = [
        f"{statistics.median(times[key]) * 1e3:.1f}" if key in times else "-"
        for key in ("floor", "ours", "torch foreach", "torch fused")
    ]
    of_floor = f"{ratio(times, 'floor'):.2f}" if "floor" in times else "-"
    best, rival = best_rival(times)
    head = f"| {name} | {count // 10**6} M | {threads} | "
    return head + " | ".join([*cells, of_floor, f"{best:.2f} ({rival})"]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 50], help="million")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    print(f"torch {torch.__version__}; medians in ms of {options.repeats} interleaved steps\n")
    heads = ["optimizer", "size", "threads", "floor", "ours", "torch foreach", "torch fused"]
    heads += ["of floor", "best rival / ours"]
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|")
    for size in options.sizes:
        for name in ("adagrad", "sgd momentum", "lion", "lamb"):
            steps = steps_of(name, size * 10**6)
            for _ in range(3):  # moves what stays in place onto huge pages
                steps["ours"]()
            contenders = {key: partial(timed, step) for key, step in steps.items()}
            for threads in options.threads:
                torch.set_num_threads(threads)
                times = rounds(contenders, options.repeats, warm=True)
                print(row(name, size * 10**6, threads, times), flush=True)


if __name__ == "__main__":
    main()
