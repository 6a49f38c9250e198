"""The log of collectives, asked for by functions instead of by an object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch.distributed as dist

from deepspeed.comm.facade import TAPS, get_rank, get_world_size, is_initialized
from ds_core.errors import ConfigError


def configure(
    deepspeed_config: Any = None,
    enabled: bool | None = None,
    prof_all: bool | None = None,
    prof_ops: Sequence[str] | None = None,
    verbose: bool | None = None,
    debug: bool | None = None,
) -> None:
    """Start to log the collectives of this module, or stop (`enabled=False`).

    An engine whose configuration enables `comms_logger` logs by itself; this is for programs
    without one. The arguments are the keys of that section and win over `deepspeed_config`.
    """
    from ds_profiler.comms_log import CommsLog  # the package is optional

    section = getattr(deepspeed_config, "comms_config", None) or deepspeed_config
    chosen: dict[str, Any] = {"prof_all": True, "prof_ops": (), "verbose": False, "debug": False}
    for key in chosen | {"enabled": False}:
        if hasattr(section, key):
            chosen[key] = getattr(section, key)
    given = {"enabled": enabled, "prof_all": prof_all, "prof_ops": prof_ops}
    given |= {"verbose": verbose, "debug": debug}
    chosen |= {key: value for key, value in given.items() if value is not None}
    for log in _logs():
        TAPS.observers.remove(log)
    if chosen.get("enabled", deepspeed_config is None):
        only = () if chosen["prof_all"] else chosen["prof_ops"] or ["(none)"]
        TAPS.add(CommsLog(only, verbose=chosen["verbose"], by_label=chosen["debug"]))


def log_summary(show_straggler: bool = False, return_dict: bool = False) -> Any:
    """Log a table of all collectives since `configure`, by operation and size.

    Args:
        show_straggler: add how long each waited for the slowest rank; all ranks call this.
        return_dict: return rows as dicts instead of nothing.
    """
    rows = []
    for log in _require_logs():
        log.log_summary(show_straggler=show_straggler, gather=_gather, rank=get_rank())
        rows += [asdict(row) for row in log.rows()]
    return rows if return_dict else None


def get_logged_comm_ops() -> list[str]:
    """Names of the collectives seen."""
    return sorted({row.name for log in _logs() for row in log.rows()})


def get_comm_operation_count() -> int:
    """How many collectives were seen."""
    return sum(row.count for log in _logs() for row in log.rows())


def has_comm_data() -> bool:
    return get_comm_operation_count() > 0


def reset_log() -> None:
    """Forget what was logged."""
    for log in _logs():
        log.reset()


def _gather(own: Any) -> list[Any]:
    every: list[Any] = [None] * get_world_size()
    if not is_initialized():
        return [own]
    dist.all_gather_object(every, own)  # unobserved: it is no collective of the program's
    return every


def _logs() -> list[Any]:
    """Whatever listens and can sum up: logs of `configure` and of engines."""
    return [tap for tap in TAPS.observers if hasattr(tap, "log_summary")]


def _require_logs() -> list[Any]:
    logs = _logs()
    if not logs:
        raise ConfigError(
            "collectives are not logged: set comms_logger.enabled in the configuration, or call "
            "deepspeed.comm.configure(enabled=True) first"
        )
    return logs
