"""The collective log over real ranks."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from ds_profiler import CommsLog
from ds_profiler.comms_log import timed
from support.ranks import run_ranks


def log_some() -> tuple[str, dict[str, float | None]]:
    """Rank 1 is late to every all-reduce."""
    log, ranks = CommsLog(), dist.get_world_size()
    everyone: list[Any] = [None] * ranks
    tensor = torch.ones(1000)

    def late() -> None:
        if dist.get_rank() == 1:
            time.sleep(0.05)
        dist.all_reduce(tensor)

    def gather(mine: Any) -> list[Any]:
        dist.all_gather_object(everyone, mine)
        return everyone

    for _ in range(3):
        timed(log, "all_reduce", tensor.nbytes, ranks, late)
    timed(log, "barrier", 0, ranks, dist.barrier)
    table = log.log_summary(show_straggler=True, gather=gather, rank=dist.get_rank())
    return table, {row.name: row.straggled for row in log.rows(everyone)}


def test_every_rank_tells_how_much_longer_than_the_fastest_it_took() -> None:
    for table, straggled in run_ranks(log_some, 2):
        assert set(straggled) == {"all_reduce", "barrier"}
        assert all(value is not None and value >= 0 for value in straggled.values())
        assert "straggled" in table
