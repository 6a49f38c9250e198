"""What does profiling cost? Ours and the peer against the plain step, interleaved.

    python benchmarks/profiler_overhead.py --peer-python PYTHON_WITH_DEEPSPEED

One training step (forward, backward) of a small GPT-2, medians over interleaved repetitions:
plain, with module times on, with counting on. Then a 70-billion-parameter model on the meta
device, in a process of its own whose peak memory is measured.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from profiler_models import Transformer


def make_step() -> tuple[nn.Module, Callable[[], None]]:
    """A model of six layers on 256 tokens, and its step."""
    torch.manual_seed(0)
    model = Transformer("bert", False, layers=6, width=384)
    tokens = torch.randint(30522, (4, 256))

    def step() -> None:
        model(tokens).sum().backward()
        model.zero_grad(set_to_none=True)

    return model, step


def timed_ours(model: nn.Module, step: Callable[[], None]) -> Callable[[], None]:
    """With a time mark around each module, forward and backward."""
    from ds_profiler.clock import HostClock
    from ds_profiler.timing import ModuleTimer
    from ds_profiler.watch import ModuleIndex

    def run() -> None:
        timer = ModuleTimer(ModuleIndex(model), HostClock())
        timer.start()
        step()
        timer.stop()

    return run


def counted_ours(model: nn.Module, step: Callable[[], None]) -> Callable[[], None]:
    """With counting and times, as `FlopsProfiler` does it in a training loop."""
    from ds_profiler import FlopsProfiler

    def run() -> None:
        with FlopsProfiler(model):
            step()

    return run


def counted_peer(model: nn.Module, step: Callable[[], None]) -> Callable[[], None]:
    """The peer's profiler around the same step; it counts the forward pass only."""
    from deepspeed.profiling.flops_profiler import FlopsProfiler

    def run() -> None:
        profiler = FlopsProfiler(model)
        profiler.start_profile()
        step()
        profiler.stop_profile()
        profiler.end_profile()

    return run


def measure(variants: dict[str, Callable[[], None]], repetitions: int) -> dict[str, list[float]]:
    """Seconds by variant, taking turns."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(repetitions + 2):
        for name, run in variants.items():
            begin = time.perf_counter()
            run()
            if round_number >= 2:
                times[name].append(time.perf_counter() - begin)
    return times


def ratios(times: dict[str, list[float]]) -> dict[str, float]:
    """Medians of the ratios to the plain step of the same round."""
    plain = times["plain"]
    return {
        name: statistics.median(t / p for t, p in zip(values, plain, strict=True))
        for name, values in times.items()
    }


class Llama(nn.Module):
    """The shape of a 70-billion-parameter Llama: 80 layers, grouped queries, gated feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(128256, 8192)
        self.layers = nn.ModuleList(LlamaLayer() for _ in range(80))
        self.norm = nn.RMSNorm(8192)
        self.head = nn.Linear(8192, 128256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class LlamaLayer(nn.Module):
    """Attention with 64 query heads and 8 key heads, then a gated feed-forward."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(8192), nn.RMSNorm(8192)
        self.q, self.o = (nn.Linear(8192, 8192, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(8192, 1024, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(8192, 28672, bias=False) for _ in range(2))
        self.down = nn.Linear(28672, 8192, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k, v = (f(y).unflatten(-1, (-1, 128)).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


LLAMA_PARAMS = (
    2 * 128256 * 8192 + 8192 + 80 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672 + 2 * 8192)
)
LLAMA_MACS = 4096 * (LLAMA_PARAMS - 128256 * 8192 - 161 * 8192) + 80 * 2 * 4096**2 * 8192


def profile_llama() -> dict[str, float]:
    """Forward and backward at 4096 tokens in bf16, on the meta device."""
    from ds_profiler import estimate_training_memory, profile

    begin = time.perf_counter()
    with torch.device("meta"):
        model = Llama().to(torch.bfloat16)
        tokens = torch.zeros(1, 4096, dtype=torch.long)
    built = time.perf_counter()
    result = profile(model, tokens, backward=True)
    done = time.perf_counter()
    assert (result.params, result.macs) == (LLAMA_PARAMS, LLAMA_MACS), (result.macs, LLAMA_MACS)
    return {
        "build_s": built - begin,
        "profile_s": done - built,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "params": result.params,
        "forward_flops": result.flops,
        "backward_flops": result.backward_flops,
        "activations_gib": result.root.activation_bytes / 2**30,
        "training_gib": estimate_training_memory(result, optimizer_bytes=12, gradient_bytes=2).total
        / 2**30,
    }


def in_interpreter(python: str, what: str, repetitions: int) -> dict:
    """One part of this script in another interpreter."""
    command = [python, __file__, "--only", what, "--repetitions", str(repetitions)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    line = next((row for row in done.stdout.splitlines() if row.startswith("RESULT ")), None)
    if line is None:
        raise SystemExit(f"{what}: {done.stderr[-2000:]}")
    return json.loads(line.removeprefix("RESULT "))


def steps(who: str, repetitions: int) -> dict[str, dict[str, float]]:
    """Medians in milliseconds and ratios to plain, of one side's variants."""
    model, step = make_step()
    variants: dict[str, Callable[[], None]] = {"plain": step}
    if who == "ours":
        variants["module times"] = timed_ours(model, step)
        variants["counting and times"] = counted_ours(model, step)
    else:
        variants["counting and times"] = counted_peer(model, step)
    times = measure(variants, repetitions)
    return {
        "ms": {name: 1e3 * statistics.median(values) for name, values in times.items()},
        "ratio": ratios(times),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peer-python", help="interpreter with deepspeed")
    parser.add_argument("--repetitions", type=int, default=12)
    parser.add_argument("--only", choices=["ours", "peer", "llama"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.only:
        found = (
            profile_llama() if options.only == "llama" else steps(options.only, options.repetitions)
        )
        print("RESULT " + json.dumps(found))
        return
    print("| one training step | median ms | ratio to plain |\n|---|---:|---:|")
    sides = [("ours", sys.executable)]
    if options.peer_python:
        sides.append(("peer", options.peer_python))
    for who, python in sides:
        found = in_interpreter(python, who, options.repetitions)
        for name, milliseconds in found["ms"].items():
            print(f"| {who}: {name} | {milliseconds:.1f} | {found['ratio'][name]:.2f} |")
    llama = in_interpreter(sys.executable, "llama", 1)
    print("\nLlama-70B shape, 4096 tokens, meta device, forward and backward:")
    for name, value in llama.items():
        print(f"- {name}: {value:,.2f}" if value < 1e6 else f"- {name}: {value:.4g}")


if __name__ == "__main__":
    main()
