"""The helper that runs ranks reports results and failures in rank order."""

import os
import time

import pytest
import torch
import torch.distributed as dist

from support.ranks import RankFailure, run_ranks


def _sum_of_ranks():
    value = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(value)
    return value.item()


def _fail_on_one():
    if dist.get_rank() == 1:
        raise ValueError("rank one is unhappy")
    dist.barrier()


def _die():
    os._exit(3)


def _sleep():
    time.sleep(30)


def test_results_come_back_in_rank_order():
    assert run_ranks(_sum_of_ranks, 3) == [3.0, 3.0, 3.0]


def test_a_failing_rank_is_named_with_its_traceback():
    with pytest.raises(RankFailure, match=r"rank 1 of 2 failed:[\s\S]*rank one is unhappy"):
        run_ranks(_fail_on_one, 2)


def test_a_dead_rank_is_named():
    with pytest.raises(RankFailure, match="rank 0 died without a word"):
        run_ranks(_die, 1)


def test_a_late_rank_is_named():
    with pytest.raises(RankFailure, match=r"ranks \[0\] of 1 still ran after 1 s"):
        run_ranks(_sleep, 1, timeout=1)
