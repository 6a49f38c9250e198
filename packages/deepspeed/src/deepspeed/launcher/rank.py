"""Turns a process that MPI or Slurm started into a rank, then becomes the program.

`python -m deepspeed.launcher.rank --ranks=COUNT,COUNT... SCRIPT ARGS...`
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import accumulate

from deepspeed import environment
from deepspeed.launcher import cores
from deepspeed.launcher.errors import LaunchError
from deepspeed.launcher.local import Program


def variables(
    place: environment.Placement, counts: Sequence[int], *, threads: int | None
) -> dict[str, str]:
    """What every rank gets, whoever started it; `counts` has the number of ranks of each host."""
    found = {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "LOCAL_SIZE": str(place.local_world_size),
        "CROSS_RANK": str(sum(place.rank >= end for end in accumulate(counts))),
        "CROSS_SIZE": str(len(counts)),
    }
    if threads is not None:
        found["OMP_NUM_THREADS"] = str(threads)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Set the rank's variables and execute its program in this very process."""
    parser = argparse.ArgumentParser(prog="python -m deepspeed.launcher.rank")
    parser.add_argument("--ranks", required=True, help="the number of ranks of each host")
    for flag in ("--module", "--no_python", "--no_local_rank"):
        parser.add_argument(flag, action="store_true")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    try:
        place = environment.discover_placement()
    except environment.EnvironmentFault as error:
        sys.stderr.write(f"deepspeed: {error}\n")
        return 2
    if place is None:
        sys.stderr.write("deepspeed: no MPI or Slurm variables tell this process its rank\n")
        return 2
    program = Program(
        given.script, tuple(given.arguments), given.module, given.no_python, given.no_local_rank
    )
    try:
        program.refuse_missing()
    except LaunchError as error:
        sys.stderr.write(f"deepspeed: {error}\n")
        return 2
    counts = [int(count) for count in given.ranks.split(",")]
    if sum(counts) != place.world_size:
        sys.stderr.write(
            f"deepspeed: {place.source} started {place.world_size} ranks, not {sum(counts)}\n"
        )
        return 2
    threads = None
    if not environment.is_set("OMP_NUM_THREADS"):
        threads = cores.threads_a_rank(place.local_world_size)
    argv = program.argv(place.local_rank)
    os.execvpe(argv[0], argv, os.environ | variables(place, counts, threads=threads))


if __name__ == "__main__":
    sys.exit(main())
