"""The command `ds-profile`: profile a model from the shell."""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ds_profiler.errors import ProfilerError, UsageError
from ds_profiler.profiling import profile
from ds_profiler.report import compare, comparison_text, write_report
from ds_profiler.report.write import form_of
from ds_profiler.result import Profile

_DTYPES = {
    name: getattr(torch, name)
    for name in ("float32", "float16", "bfloat16", "float64", "int64", "int32", "bool")
}
_SHAPE = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<sizes>\d+(?:x\d+)*)(?::(?P<dtype>\w+))?\Z")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = _parser().parse_args(argv)
    sys.path.insert(0, str(Path.cwd()))
    try:
        status = _compare(options.files) if options.target == "compare" else _profile(options)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader of the output, as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ProfilerError as error:
        sys.stderr.write(f"ds-profile: {error}\n")
        return 2


@contextmanager
def _explained(what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turns what the arguments themselves cause into one line."""
    try:
        yield
    except BrokenPipeError:
        raise
    except kinds as error:
        raise UsageError(f"{what}: {str(error).splitlines()[0]}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ds-profile",
        description="Count and time a PyTorch model: `ds-profile my_models:make_net "
        "--input 1x3x224x224`, or `ds-profile compare before.json after.json`.",
    )
    parser.add_argument("target", help="module:factory (called without arguments), or 'compare'")
    parser.add_argument("files", nargs="*", help="two profiles to compare (JSON)")
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="[NAME=]SIZExSIZE[:DTYPE]",
        help="shape of an argument, e.g. 1x3x224x224 or input_ids=1x128:int64; repeat for more",
    )
    parser.add_argument("--backward", action="store_true", help="the backward pass too")
    parser.add_argument("--train", action="store_true", help="training mode (default: evaluation)")
    parser.add_argument(
        "--meta",
        action="store_true",
        help="build and count on the meta device: no memory, no time measured",
    )
    floats = sorted(name for name, dtype in _DTYPES.items() if dtype.is_floating_point)
    parser.add_argument("--dtype", choices=floats, help="convert the model to this")
    parser.add_argument("--device", default="cpu", help="where to run (default: cpu)")
    parser.add_argument("--warm-up", type=int, default=1, help="passes before the timed one")
    parser.add_argument("--depth", type=int, default=-1, help="depth of the aggregated report")
    parser.add_argument("--top", type=int, default=1, help="kinds of modules to list at a depth")
    parser.add_argument("--summary", action="store_true", help="leave the tree of modules out")
    parser.add_argument(
        "-o",
        "--output",
        action="append",
        default=[],
        help="file: .html, .json, .trace.json, .txt, .log; repeat for more (default: text here)",
    )
    return parser


def _profile(options: argparse.Namespace) -> int:
    if options.files:
        raise UsageError(f"{options.files[0]!r}: only compare takes files; -o names the output")
    for output in options.output:
        form_of(output)  # refused before the model runs, not after
    with _explained(f"--device {options.device!r}", RuntimeError, AssertionError):
        device = torch.empty(0, device="meta" if options.meta else options.device).device
    factory = _load(options.target)
    with device:
        model = factory()
    if not isinstance(model, nn.Module):
        raise UsageError(f"{options.target} made a {type(model).__name__}, not a torch.nn.Module")
    model = model.to(device=device, dtype=_DTYPES[options.dtype] if options.dtype else None)
    args, kwargs = _inputs(options.input, model, device)
    with torch.set_grad_enabled(options.backward):
        result = profile(
            model,
            *args,
            kwargs=kwargs,
            backward=options.backward,
            training=options.train,
            warm_up=options.warm_up,
        )
    for output in options.output or [None]:
        with _explained("cannot write", OSError):
            write_report(
                result,
                output,
                module_depth=options.depth,
                top_modules=options.top,
                detailed=not options.summary,
            )
        if output is not None:
            sys.stdout.write(f"written: {output}\n")
    return 0


def _compare(files: Sequence[str]) -> int:
    if len(files) != 2:
        raise UsageError(f"compare needs two JSON files, got {len(files)}")
    with _explained("cannot read", OSError):
        before, after = (Profile.load(file) for file in files)
    sys.stdout.write(comparison_text(compare(before, after)) + "\n")
    return 0


def _load(target: str) -> Any:
    module_name, separator, path = target.partition(":")
    if not separator or not path or not module_name or module_name.startswith("."):
        raise UsageError(f"{target!r}: say module:factory, e.g. torchvision.models:resnet50")
    try:
        found: Any = importlib.import_module(module_name)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"cannot load {target!r}: {error}") from error
    if not callable(found):
        raise UsageError(f"{target!r} is a {type(found).__name__}, not a factory to call")
    try:
        signature = inspect.signature(found)
    except ValueError:
        return found  # some builtins tell nothing about their arguments
    with _explained(f"{target!r} cannot be called without arguments", TypeError):
        signature.bind()
    return found


def _inputs(
    shapes: Sequence[str], model: nn.Module, device: torch.device
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    args: list[torch.Tensor] = []
    kwargs: dict[str, torch.Tensor] = {}
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.empty(0))
    for text in shapes:
        match = _SHAPE.match(text)
        if match is None or (match["dtype"] and match["dtype"] not in _DTYPES):
            raise UsageError(
                f"--input {text!r}: say [NAME=]SIZExSIZE[:DTYPE] with a DTYPE of "
                f"{', '.join(sorted(_DTYPES))}"
            )
        dtype = _DTYPES[match["dtype"]] if match["dtype"] else like.dtype
        sizes = [int(size) for size in match["sizes"].split("x")]
        with _explained(f"--input {text!r}", RuntimeError):
            tensor = torch.ones(sizes, dtype=dtype, device=device)
        if match["name"]:
            kwargs[match["name"]] = tensor
        else:
            args.append(tensor)
    return args, kwargs


if __name__ == "__main__":
    raise SystemExit(main())
