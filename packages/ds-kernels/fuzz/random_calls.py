"""Random steps over random memory, a tenth of them wrong, to be run under AddressSanitizer.

python random_calls.py [--calls 10000] [--seed 0] [--native PATH_OF_A_COMPILED_MODULE]
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import ds_kernels
from ds_kernels import TensorError, backend

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
SIZES = (0, 1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 127, 300, 1025, 70_001)
ADAM = ("exp_avg", "exp_avg_sq")
STATES = {"adam": ADAM, "lamb": ADAM, "adagrad": ("sum",), "lion": ("exp_avg",), "sgd": ("b",)}


def use_native(path: str) -> None:
    """Load this compiled module in place of the installed one."""
    spec = importlib.util.spec_from_file_location("ds_kernels._native", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["ds_kernels._native"] = module


def some_tensor(rng: random.Random, size: int, dtype: torch.dtype) -> Tensor:
    """A slice that ends exactly, or nearly, where its memory ends."""
    before, after = rng.choice((0, 0, 1, 3, 8)), rng.choice((0, 0, 0, 2))
    return torch.rand(before + size + after).to(dtype)[before : before + size]


def spoiled(rng: random.Random, tensor: Tensor) -> Tensor:
    """Something that must be refused in place of `tensor`."""
    size = tensor.numel()
    ways: list[Callable[[], Tensor]] = [
        lambda: torch.ones(size + 1),
        lambda: torch.ones(size, dtype=torch.float64),
        lambda: torch.ones(size, device="meta"),
        lambda: torch.ones(2 * size + 4)[::2][: size + 2],
    ]
    if size > 0:
        ways.append(lambda: freed(size))
    return rng.choice(ways)()


def freed(size: int) -> Tensor:
    tensor = torch.ones(size)
    tensor.untyped_storage().resize_(0)
    return tensor


def one_call(rng: random.Random, queue: ds_kernels.StepQueue) -> Any:
    """One step; the handle if it runs in the background."""
    name, count = rng.choice(list(STATES)), rng.choice((1, 1, 2, 5))
    sizes = [rng.choice(SIZES) for _ in range(count)]
    kinds = [rng.choice(DTYPES) for _ in range(4)]
    columns = [[some_tensor(rng, n, kind) for n in sizes] for kind in kinds[:2]]
    columns += [[some_tensor(rng, n, kinds[2]) for n in sizes] for _ in STATES[name]]
    if rng.random() < 0.5:
        columns.append([some_tensor(rng, n, kinds[3]) for n in sizes])
    wrong = rng.random() < 0.1
    if wrong:
        column = rng.choice(columns[1:])
        index = rng.randrange(count)
        column[index] = spoiled(rng, columns[0][index])
    settings: dict[str, Any] = {"lr": 1e-3, "weight_decay": 0.1, "grad_scale": 0.5}
    if name != "lion":
        settings["step"] = rng.choice((1, 2, 1000))
    if name == "sgd":
        settings["momentum"] = 0.9
    if name != "lamb" and rng.random() < 0.3:
        settings["queue"] = queue
    os.environ[backend.FORCE_VARIABLE] = rng.choice(backend.available()[1:])
    torch.set_num_threads(rng.choice((1, 2, 3)))
    try:
        handle = getattr(ds_kernels, f"{name}_step")(*columns, **settings)
    except TensorError:
        if not wrong:
            raise
        return None
    if wrong:
        raise SystemExit(f"{name}: a bad tensor was accepted")
    return handle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--native")
    options = parser.parse_args()
    if options.native:
        use_native(options.native)
    rng, queue, flying = random.Random(options.seed), ds_kernels.StepQueue(), []
    for _ in range(options.calls):
        flying.append(one_call(rng, queue))
        if len(flying) > 8:
            flying.pop(rng.randrange(8))  # dropped handles wait for their work
    flying.clear()
    sys.stdout.write(f"{options.calls} random calls, seed {options.seed}: clean\n")


if __name__ == "__main__":
    main()
