"""What all our commands that print have in common."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")


def printing(main: Callable[P, int]) -> Callable[P, int]:
    """Make `main` end in silence, with 0, once the reader of its output has seen enough, as `head`.

    Here and not in each command, since the break may show only when the last lines are flushed.
    """

    @functools.wraps(main)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            try:
                return main(*args, **kwargs)
            finally:  # also behind --help, which leaves by SystemExit
                sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0

    return run
