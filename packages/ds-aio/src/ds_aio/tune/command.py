"""The command `ds_nvme_tune`: the settings that suit a device, as a section for a configuration."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch

from ds_aio.errors import AioError
from ds_aio.sizes import count_argument, show_size, size_argument
from ds_aio.tune.plot import draw
from ds_aio.tune.sweep import Plan, Point, Space, best_point, sweep


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `ds_nvme_tune`."""
    given = _parser().parse_args(arguments)
    if given.no_read and given.no_write:
        _parser().error("--no_read and --no_write leave nothing to measure")
    try:
        space = Space.load(given.sweep_config) if given.sweep_config else Space()
        plan = _plan(given)
        sys.stdout.write(f"Running DeepNVMe performance tuning on {given.nvme_dir}\n")
        points = list(_with_progress(sweep(plan, space), len(space), verbose=given.verbose))
    except (AioError, OSError, RuntimeError) as error:  # of ours, of a file name, of memory
        sys.stderr.write(f"ds_nvme_tune: {str(error).splitlines()[0]}\n")
        return 1
    kinds = [*([] if given.no_read else ["read"]), *([] if given.no_write else ["write"])]
    best = best_point(points)
    sys.stdout.write(_table(points, best))
    rates = ", ".join(f"{kind} = {_rate(best, kind):5.2f}" for kind in kinds)
    sys.stdout.write(f"Best performance (GB/sec): {rates}\n")
    section = json.dumps({"aio": best.section()}, indent=3)
    sys.stdout.write(section + "\n")
    try:
        _keep(Path(given.log_dir), points, kinds, section)
    except OSError as error:
        sys.stderr.write(f"ds_nvme_tune: --log_dir: {error}\n")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ds_nvme_tune", description=__doc__)
    parser.add_argument("--nvme_dir", nargs="+", required=True, help="writable folders to test in")
    parser.add_argument("--sweep_config", help="JSON file of the values to try")
    parser.add_argument("--no_read", action="store_true", help="do not measure reads")
    parser.add_argument("--no_write", action="store_true", help="do not measure writes")
    parser.add_argument("--io_size", type=size_argument, default=400 << 20, help="bytes (400M)")
    parser.add_argument("--gpu", action="store_true", help="tensors in device memory")
    parser.add_argument("--gds", action="store_true", help="demand GPUDirect Storage")
    parser.add_argument(
        "--flush_page_cache",
        action="store_true",
        help="drop the file's cached pages before each loop; needs no special rights",
    )
    parser.add_argument("--log_dir", default="./_aio_bench_logs", help="where results are kept")
    parser.add_argument(
        "--loops", type=count_argument, default=1, help="repetitions; medians count"
    )
    parser.add_argument("--verbose", action="store_true", help="print each result as it comes")
    return parser


def _plan(given: argparse.Namespace) -> Plan:
    device = "cpu"
    if given.gpu or given.gds:
        if not torch.accelerator.is_available():
            raise AioError("--gpu: no accelerator is visible")
        device = str(torch.accelerator.current_accelerator())
    folders = [Path(name) for name in given.nvme_dir]
    for folder in folders:
        if not folder.is_dir():
            raise AioError(f"--nvme_dir {str(folder)!r} is no folder")
    return Plan(
        folders,
        given.io_size,
        loops=given.loops,
        read=not given.no_read,
        write=not given.no_write,
        device=device,
        gds=given.gds,
        flush_page_cache=given.flush_page_cache,
    )


def _with_progress(points: Iterable[Point], total: int, *, verbose: bool) -> Iterator[Point]:
    if importlib.util.find_spec("tqdm") is not None:
        from tqdm import tqdm

        points = tqdm(points, total=total, unit="setting", file=sys.stderr)
    for number, point in enumerate(points, 1):
        if verbose:
            sys.stderr.write(f"{number}/{total} {_row(point)}\n")
        yield point


def _rate(point: Point, kind: str) -> float:
    return ((point.read if kind == "read" else point.write) or 0.0) / 1e9


def _row(point: Point) -> str:
    o = point.options
    return (
        f"{show_size(o.block_size):>8} {o.queue_depth:>6} {o.intra_op_parallelism:>8} "
        f"{o.single_submit!s:>7} {o.overlap_events!s:>8} "
        f"{_rate(point, 'read'):>7.2f} {_rate(point, 'write'):>7.2f}"
    )


def _table(points: Sequence[Point], best: Point) -> str:
    head = "   block  depth  threads  single  overlap    read   write"
    rows = [_row(point) + ("  <- best" if point is best else "") for point in points]
    return "\n".join([head, *rows]) + "\n"


def _keep(folder: Path, points: Sequence[Point], kinds: Sequence[str], section: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "best.json").write_text(section + "\n")
    results = [{**p.section(), "read": p.read, "write": p.write} for p in points]
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    if importlib.util.find_spec("matplotlib") is None:
        sys.stdout.write("No heat map: pip install 'ds-aio[tune]'\n")
        return
    draw(points, kinds, folder / "throughput.png")
    sys.stdout.write(f"Results and heat map are in {folder}\n")
