"""Ranks that are threads of this process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest


class ThreadRank:
    def __init__(self, rank: int, board: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.world_size = rank, len(board)
        self._board, self._barrier = board, barrier

    def all_gather_object(self, obj: Any, *, label: str = "") -> list[Any]:
        self._board[self.rank] = obj
        self._barrier.wait()
        everyone = list(self._board)
        self._barrier.wait()
        return everyone

    def broadcast_object(self, obj: Any, src: int, *, label: str = "") -> Any:
        return self.all_gather_object(obj)[src]


@pytest.fixture(scope="session")
def as_ranks() -> Callable[..., list[Any]]:
    """`as_ranks(n, function)` calls `function(comm)` on n ranks; returns results or errors."""

    def run(world_size: int, function: Callable[[Any], Any]) -> list[Any]:
        board: list[Any] = [None] * world_size
        barrier = threading.Barrier(world_size, timeout=20)

        def one(rank: int) -> Any:
            try:
                return function(ThreadRank(rank, board, barrier))
            except Exception as error:
                return error

        with ThreadPoolExecutor(world_size) as pool:
            return list(pool.map(one, range(world_size)))

    return run
