"""The logger of the package, and messages from some ranks only."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import torch.distributed as dist

from deepspeed.config import Config
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


def speak_as_configured(config: Config) -> None:
    """Log as much as the configuration says, and let what it asks for be seen."""
    general = config.general
    if general.log_level is not None:
        let_be_seen("deepspeed", _level(general.log_level))
        logger.setLevel(_level(general.log_level))
    if general.dump_state and this_rank() == 0:
        logger.warning("%s", config)
    if general.steps_per_print or general.memory_breakdown:
        let_be_seen("deepspeed.progress", logging.INFO)
    timing = (config.sections.get(name) for name in ("wall_clock_breakdown", "comms_logger"))
    if any(getattr(section, "enabled", False) for section in timing):
        let_be_seen("ds_profiler", logging.INFO)


def let_be_seen(name: str, level: int) -> None:
    """Write what a logger says to stderr, unless the program has set logging up itself."""
    wanted = logging.getLogger(name)
    if wanted.hasHandlers():
        return
    handler = _UntilConfigured()
    handler.setFormatter(logging.Formatter("[%(asctime)s] %(message)s", "%H:%M:%S"))
    wanted.addHandler(handler)
    if wanted.getEffectiveLevel() > level:
        wanted.setLevel(level)


class _UntilConfigured(logging.StreamHandler[TextIO]):
    """Writes as long as the root logger has no handler, so that no line appears twice."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


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
