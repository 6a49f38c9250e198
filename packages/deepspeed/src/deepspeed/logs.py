"""The logger of the package, and messages from some ranks only."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ds_core.errors import ConfigError

logger = logging.getLogger("deepspeed")
"""What programs set the level of; every module of the package logs below it."""

_FAMILY = ("deepspeed", "ds_core", "ds_data", "ds_kernels", "ds_pipeline", "ds_profiler", "ds_zero")


def this_rank() -> int:
    """The rank, or 0 without a process group."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def log_dist(message: str, ranks: Iterable[int] | None = None, level: int = logging.INFO) -> None:
    """Log on these ranks (default and -1: all), with the rank in front."""
    rank = this_rank()
    wanted = list(ranks) if ranks is not None else [-1]
    if -1 in wanted or rank in wanted:
        logger.log(level, "[Rank %d] %s", rank, message)


print_dist = log_dist


def print_json_dist(
    message: Mapping[str, Any], ranks: Iterable[int] | None = None, path: str | None = None
) -> None:
    """Write `message` as JSON to `path` on these ranks."""
    rank = this_rank()
    wanted = list(ranks) if ranks is not None else [-1]
    if path is not None and (-1 in wanted or rank in wanted):
        Path(path).write_text(json.dumps({"rank": rank, **message}))


@contextmanager
def one_rank_warns(rank: int) -> Iterator[None]:
    """Inside, only rank 0 warns: of what is said about arguments that all ranks share."""
    muted = [logging.getLogger(name) for name in _FAMILY] if rank else []
    levels = [each.level for each in muted]
    for each in muted:
        each.setLevel(max(each.getEffectiveLevel(), logging.ERROR))
    try:
        yield
    finally:
        for each, level in zip(muted, levels, strict=True):
            each.setLevel(level)


def get_current_level() -> int:
    """The level the logger works at."""
    return logger.getEffectiveLevel()


def set_log_level_from_string(log_level_str: str, custom_logger: Any = None) -> None:
    """Set the level by name: debug, info, warning, error or critical."""
    (custom_logger or logger).setLevel(_level(log_level_str))


def should_log_le(max_log_level_str: str) -> bool:
    """True if messages of that level would be seen."""
    return get_current_level() <= _level(max_log_level_str)


def _level(name: str) -> int:
    level = getattr(logging, name.upper(), None)
    if not isinstance(level, int):
        raise ConfigError(f"log level {name!r} is not debug, info, warning, error or critical")
    return level
