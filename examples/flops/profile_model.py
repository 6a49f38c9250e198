"""Count the flops of a model, module by module, and draw them.

python profile_model.py --model gpt --backward
python profile_model.py --model gpt --layers 48 --width 8192 --heads 64 --meta
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

from ds_profiler import Profile, estimate_training_memory, profile, text_report, write_report

sys.path.append(str(Path(__file__).resolve().parents[1] / "gpt"))
from flame import draw_flame
from model import GPT, GPTShape

HERE = Path(__file__).resolve().parent


def alexnet() -> nn.Module:
    """The network of Krizhevsky (2014), the first example of the profiler's tutorial."""
    sizes = [(3, 64, 11, 4, 2), (64, 192, 5, 1, 2), (192, 384, 3, 1, 1), (384, 256, 3, 1, 1)]
    layers: list[nn.Module] = []
    for number, (inner, outer, kernel, stride, padding) in enumerate(sizes):
        layers += [nn.Conv2d(inner, outer, kernel, stride, padding), nn.ReLU(inplace=True)]
        if number < 2:
            layers.append(nn.MaxPool2d(3, 2))
    layers += [nn.Conv2d(256, 256, 3, 1, 1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)]
    classifier = nn.Sequential(
        nn.Dropout(),
        nn.Linear(9216, 4096),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(4096, 4096),
        nn.ReLU(inplace=True),
        nn.Linear(4096, 1000),
    )
    return nn.Sequential(nn.Sequential(*layers), nn.AdaptiveAvgPool2d(6), nn.Flatten(), classifier)


def build(args: argparse.Namespace) -> tuple[nn.Module, torch.Tensor]:
    """The model and an input for it."""
    if args.model == "alexnet":
        return alexnet(), torch.randn(args.batch, 3, 224, 224)
    shape = GPTShape(args.layers, args.width, args.heads, args.context)
    return GPT(shape), torch.zeros(args.batch, args.context, dtype=torch.long)


def report(result: Profile, out: Path, name: str) -> None:
    """The same profile as text, page, trace and picture."""
    out.mkdir(parents=True, exist_ok=True)
    for ending in ("txt", "html", "json", "trace.json"):
        write_report(result, out / f"{name}.{ending}")
    draw_flame(result, out / f"{name}.png")
    print(f"{result.params:,} parameters, {result.macs:,} MACs, {result.flops:,} flops forward")
    if result.backward_flops:
        memory = in_bytes(estimate_training_memory(result).total)
        print(f"{result.backward_flops:,} flops backward; {memory} to train with Adam")
    print(f"without a rule: {result.uncounted or 'nothing'}")
    print(f"see {out / name}.html, .png, .txt, .trace.json")


def in_bytes(count: float) -> str:
    """MiB, or GiB where there are many."""
    return f"{count / 2**20:,.0f} MiB" if count < 10 * 2**30 else f"{count / 2**30:,.0f} GiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=("gpt", "alexnet"), default="gpt")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--layers", type=int, default=GPTShape.layers)
    parser.add_argument("--width", type=int, default=GPTShape.width)
    parser.add_argument("--heads", type=int, default=GPTShape.heads)
    parser.add_argument("--context", type=int, default=GPTShape.context)
    parser.add_argument("--backward", action="store_true", help="count the backward pass too")
    parser.add_argument("--meta", action="store_true", help="compute and store nothing")
    parser.add_argument("--text", action="store_true", help="print the whole report")
    parser.add_argument("--out", type=Path, default=HERE / "runs", help="results folder")
    args = parser.parse_args()
    with torch.device("meta" if args.meta else "cpu"):
        model, inputs = build(args)
        result = profile(model, inputs, backward=args.backward)
    if args.text:
        print(text_report(result))
    report(result, args.out, args.model)


if __name__ == "__main__":
    main()
