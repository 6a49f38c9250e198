"""`ds-pipeline draw`: a schedule, or a recorded run, as a picture."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ds_core.errors import DSError
from ds_pipeline.draw import draw, summary
from ds_pipeline.recording import read_recording
from ds_pipeline.schedules import SCHEDULES, plan
from ds_pipeline.simulate import Costs, Timeline, simulate


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    args = _parser().parse_args(arguments)
    try:
        timeline, title = _timeline(args)
        draw(timeline, args.output, title)
    except (DSError, OSError, ValueError) as error:
        sys.stderr.write(f"ds-pipeline: {error}\n")
        return 1
    sys.stdout.write(f"{summary(timeline, title)}\nwritten: {args.output}\n")
    return 0


def _timeline(args: argparse.Namespace) -> tuple[Timeline, str]:
    if args.recorded is not None:
        return read_recording(args.recorded), f"recorded run {args.recorded.name}"
    plans = [
        plan(args.schedule, stage, args.stages, args.micro_batches, chunks=args.chunks)
        for stage in range(args.stages)
    ]
    costs = Costs(args.forward, args.input, args.weight, args.travel)
    title = f"{args.schedule}, {args.micro_batches} micro-batches"
    return simulate(plans, costs, chunks=args.chunks), title


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ds-pipeline", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("draw", help="write a picture of a schedule or a recorded run")
    command.add_argument("--schedule", choices=sorted(SCHEDULES), default="1f1b")
    command.add_argument("--stages", type=int, default=4)
    command.add_argument("--micro-batches", type=int, default=8)
    command.add_argument("--chunks", type=int, default=1, help="chunks a stage (interleaved)")
    command.add_argument("--forward", type=float, default=1.0, help="time of a forward pass")
    command.add_argument("--input", type=float, default=1.0, help="time of gradients of inputs")
    command.add_argument("--weight", type=float, default=1.0, help="time of gradients of weights")
    command.add_argument("--travel", type=float, default=0.0, help="time between two stages")
    command.add_argument("--recorded", type=Path, help="a file of recording.write_recording")
    command.add_argument(
        "--output", "-o", type=Path, default=Path("schedule.html"), help=".html or .png"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
