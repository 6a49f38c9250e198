"""Are the flops right? Ours, PyTorch's counter and four peers against values worked out by hand.

    python benchmarks/flops_accuracy.py --peer-python PYTHON_WITH_DEEPSPEED \\
        --counters-python PYTHON_WITH_FVCORE_CALFLOPS_PTFLOPS

Every case is called once with positional and once with keyword arguments. A peer runs in its own
interpreter and gets the very same models (`profiler_models.py`). Multiply-accumulates are
compared: what all of them can tell.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from profiler_models import AlexNet, Case, cases

Counts = dict[str, float | None]
PEERS = ("deepspeed", "fvcore", "calflops", "ptflops")


def count_ours(module: nn.Module, case: Case, inputs: dict[str, Any], keyword: bool) -> Counts:
    """Forward, and backward where there is one."""
    from ds_profiler import FlopsProfiler

    with torch.set_grad_enabled(case.backward is not None), FlopsProfiler(module) as profiler:
        output = module(**inputs) if keyword else module(*inputs.values())
        if case.backward is not None:
            output.sum().backward()
    result = profiler.result
    if result.uncounted:
        return {"forward": None, "backward": None}
    return {"forward": result.macs, "backward": result.root.backward.macs}


def count_torch(module: nn.Module, case: Case, inputs: dict[str, Any], keyword: bool) -> Counts:
    """`torch.utils.flop_counter.FlopCounterMode`; it counts two flops a multiply-accumulate."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.set_grad_enabled(case.backward is not None):
        with FlopCounterMode(display=False) as forward:
            output = module(**inputs) if keyword else module(*inputs.values())
        with FlopCounterMode(display=False) as backward:
            if case.backward is not None:
                output.sum().backward()
    return {
        "forward": forward.get_total_flops() / 2,
        "backward": backward.get_total_flops() / 2,
    }


def count_deepspeed(module: nn.Module, case: Case, inputs: dict[str, Any], keyword: bool) -> Counts:
    """`get_model_profile`; its backward pass is twice its forward pass, by its manual."""
    from deepspeed.profiling.flops_profiler import FlopsProfiler

    with torch.set_grad_enabled(case.backward is not None):
        profiler = FlopsProfiler(module)
        profiler.start_profile()
        module(**inputs) if keyword else module(*inputs.values())
        macs = profiler.get_total_macs()
        profiler.end_profile()
    return {"forward": macs, "backward": 2 * macs}


def count_fvcore(module: nn.Module, case: Case, inputs: dict[str, Any], keyword: bool) -> Counts:
    """Its "flops" are multiply-accumulates. It traces, so it takes positional arguments only."""
    from fvcore.nn import FlopCountAnalysis

    if keyword:
        raise TypeError("no keyword arguments")
    with torch.set_grad_enabled(case.backward is not None):
        analysis = FlopCountAnalysis(module, tuple(inputs.values()))
        analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
        by_operator = analysis.by_operator()
    products = {"conv", "linear", "matmul", "einsum", "addmm", "bmm"}
    total = sum(value for name, value in by_operator.items() if name in products)
    return {"forward": total, "backward": None}


def count_calflops(module: nn.Module, case: Case, inputs: dict[str, Any], keyword: bool) -> Counts:
    """`calculate_flops`."""
    from calflops import calculate_flops

    with torch.set_grad_enabled(case.backward is not None):
        _, macs, _ = calculate_flops(
            model=module,
            args=[] if keyword else list(inputs.values()),
            kwargs=inputs if keyword else {},
            print_results=False,
            print_detailed=False,
            output_as_string=False,
        )
    return {"forward": macs, "backward": None}


def count_ptflops(module: nn.Module, case: Case, inputs: dict[str, Any], keyword: bool) -> Counts:
    """`get_model_complexity_info`; its inputs are always keywords unless it makes the tensor."""
    from ptflops import get_model_complexity_info

    if not keyword and len(inputs) > 1:
        raise TypeError("one positional argument only")
    (first, *_) = inputs.values()
    if not keyword and not first.is_floating_point():
        raise TypeError("makes floating-point inputs only")
    macs, _ = get_model_complexity_info(
        module,
        tuple(first.shape[1:]) if not keyword else (1,),
        input_constructor=(lambda _: inputs) if keyword else None,
        as_strings=False,
        print_per_layer_stat=False,
        verbose=False,
    )
    batch = 1 if keyword else first.shape[0]
    return {"forward": None if macs is None else macs * batch, "backward": None}


COUNTERS: dict[str, Callable[..., Counts]] = {
    "ours": count_ours,
    "torch": count_torch,
    "deepspeed": count_deepspeed,
    "fvcore": count_fvcore,
    "calflops": count_calflops,
    "ptflops": count_ptflops,
}


def run_counter(name: str) -> list[list[Counts | str]]:
    """What one counter says of each case, positional and by keyword; or why it says nothing.

    Each call runs in a process of its own, forked from this one, so that what a counter leaves
    patched behind does not spoil its next count.
    """
    importlib.import_module({"ours": "ds_profiler", "torch": "torch"}.get(name, name))
    return [[_apart(name, number, way) for way in (False, True)] for number in range(len(cases()))]


def _apart(name: str, number: int, keyword: bool) -> Counts | str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with os.fdopen(writer, "w") as pipe, contextlib.redirect_stdout(io.StringIO()):
            json.dump(_count(name, number, keyword), pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else "died"


def _count(name: str, number: int, keyword: bool) -> Counts | str:
    case = cases()[number]
    with torch.device("meta"):  # costs do not depend on values: zeros are made faster
        module = case.build(keyword).train(case.training)
    module.to_empty(device="cpu")
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.detach().zero_()
    try:
        return COUNTERS[name](module, case, case.inputs(), keyword)
    except Exception as error:  # a peer's failure is a result
        return f"{type(error).__name__}: {error}"[:120]


def in_interpreter(python: str, name: str) -> list[list[Counts | str]]:
    """The same in a peer's interpreter."""
    done = subprocess.run(
        [python, __file__, "--only", name], capture_output=True, text=True, check=False
    )
    line = next((row for row in done.stdout.splitlines() if row.startswith("RESULT ")), None)
    if line is None:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    return json.loads(line.removeprefix("RESULT "))


def cell(found: Counts | str, phase: str, exact: int | None) -> str:
    """A count as the exact one, as a factor of it, or as missing."""
    value = None if isinstance(found, str) else found[phase]
    if value is None or exact is None:
        return "-"
    return "exact" if value == exact else f"{value / exact:.3f}x"


def both(row: list[Counts | str], phase: str, exact: int | None) -> str:
    """The cells of both ways to call, once if they agree."""
    first, second = (cell(found, phase, exact) for found in row)
    return first if first == second else f"{first} / {second}"


def print_table(results: dict[str, list[list[Counts | str]]]) -> None:
    """Two tables: forward and backward."""
    for phase in ("forward", "backward"):
        names = [n for n in results if phase == "forward" or n in ("ours", "torch", "deepspeed")]
        print(f"\n| {phase}, multiply-accumulates | by hand | {' | '.join(names)} |")
        print(f"|---|---:|{'---|' * len(names)}")
        for number, case in enumerate(cases()):
            exact = case.forward if phase == "forward" else case.backward
            if exact is None:
                continue
            cells = [both(results[name][number], phase, exact) for name in names]
            print(f"| {case.name} | {exact:,} | {' | '.join(cells)} |")


def print_documented() -> None:
    """The reference's own examples: AlexNet, and the layers of BERT-Large."""
    from ds_profiler import get_model_profile, profile

    counts = get_model_profile(AlexNet(), (1, 3, 224, 224), print_profile=False, as_string=False)
    print("\nAlexNet, flops, MACs, parameters:", *(f"{count:,}" for count in counts))
    with torch.device("meta"):
        x = torch.empty(80, 128, 1024)
        for name, sizes in (
            ("query, key, value, dense", (1024, 1024)),
            ("intermediate", (1024, 4096)),
        ):
            macs = profile(nn.Linear(*sizes), x).macs
            print(f"BERT-Large at batch 80, {name}: {macs / 1e9:.2f} GMACs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peer-python", help="interpreter with deepspeed")
    parser.add_argument("--counters-python", help="interpreter with fvcore, calflops, ptflops")
    parser.add_argument("--only", choices=sorted(COUNTERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.only:
        print("RESULT " + json.dumps(run_counter(options.only)))
        return
    pythons = {"ours": sys.executable, "torch": sys.executable}
    for name in PEERS:
        pythons[name] = options.peer_python if name == "deepspeed" else options.counters_python
    wanted = {name: python for name, python in pythons.items() if python}
    with ThreadPoolExecutor() as pool:  # counts do not depend on speed: all at once
        found = pool.map(in_interpreter, wanted.values(), wanted)
        results = dict(zip(wanted, found, strict=True))
    print_table(results)
    print_documented()
    for name, rows in results.items():
        for case, row in zip(cases(), rows, strict=True):
            for way, found in zip(("positional", "keyword"), row, strict=True):
                if isinstance(found, str):
                    print(f"- {name}, {case.name}, {way}: {found}")


if __name__ == "__main__":
    main()
