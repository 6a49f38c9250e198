"""A rank that waits says where, first while it waits and then when it gives up."""

from __future__ import annotations

import logging
import time
import warnings
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from ds_core.comm import Communicator
from ds_core.errors import CollectiveTimeout
from support.ranks import run_ranks


class Heard(logging.Handler):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def meet(what: str) -> tuple[Any, list[str]]:
    """Rank 1 comes a second late; patience is a quarter of that."""
    warnings.simplefilter("error")  # of names that torch has given up
    Communicator.patience = timedelta(seconds=0.25)
    heard = Heard()
    logging.getLogger("ds_core.comm").addHandler(heard)
    comm = Communicator()
    if comm.rank == 1:
        time.sleep(1.0)
    result: Any = None
    if what == "all_gather_object":
        result = comm.all_gather_object("x" * (comm.rank + 1), label="names")
    elif what == "broadcast_object":
        result = comm.broadcast_object({"from": comm.rank}, 1, label="facts")
    else:
        result = comm.sum_number(comm.rank + 1.0, label="batch weights")
    return result, heard.texts


@pytest.mark.parametrize(
    ("what", "label", "wanted"),
    [
        ("all_gather_object", "names", ["x", "xx"]),
        ("broadcast_object", "facts", {"from": 1}),
        ("all_reduce", "batch weights", 3.0),
    ],
)
def test_a_long_wait_is_told_once_and_goes_on(what: str, label: str, wanted: Any) -> None:
    (first, told), (second, untold) = run_ranks(meet, 2, what)
    assert first == second == wanted
    assert untold == []
    (text,) = told
    assert f"rank 0 of 2 in group 'world' has waited 0.25 s in {what} number 1 ({label})" in text
    assert "`if rank == 0`" in text


def late_in_one_of_two_groups() -> str:
    """Ranks 0 and 1 are one group, 2 and 3 another of the same name; 1 and 3 stay away."""
    pairs = [dist.new_group(pair, timeout=timedelta(seconds=1)) for pair in ([0, 1], [2, 3])]
    rank = dist.get_rank()
    if rank % 2:
        time.sleep(4)
        return ""
    comm = Communicator(pairs[rank // 2], name="data")
    with pytest.raises(CollectiveTimeout) as told:
        comm.sum_number(1.0, label=f"of rank {rank}")
    return str(told.value)


def test_groups_of_one_name_do_not_speak_for_each_other() -> None:
    first, _, second, _ = run_ranks(late_in_one_of_two_groups, 4)
    for own, other, text in ((0, 2, first), (2, 0, second)):
        assert f"rank 0: waits in all_reduce number 1 (of rank {own})" in text
        assert f"of rank {other})" not in text
        assert "rank 1: has not arrived" in text
