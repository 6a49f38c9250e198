"""Waiting for many transfers: all of them end, each is counted and each error raised once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import ds_aio
from ds_aio.errors import ShortFile, transfer_error
from ds_aio.pending import MANY, Pending
from ds_aio.transfer import Ended, Transfer


class Slow(Ended):
    """A request that ends when it is told to."""

    def __init__(self, number: int = 0, wakes: type[BaseException] | None = None) -> None:
        super().__init__((0, number, False, 0))
        self.end = threading.Event()
        self.wakes = wakes

    def done(self) -> bool:
        return self.end.is_set()

    def wait(self) -> None:
        if self.wakes is not None:
            wakes, self.wakes = self.wakes, None
            raise wakes
        assert self.end.wait(20)


def transfer(request: Ended) -> Transfer:
    return Transfer(request, action="read", path="f", offset=0, wanted=1)


def test_threads_that_wait_together_all_return_when_all_has_ended() -> None:
    pending, requests = Pending(), [Slow(), Slow(), Slow()]
    for request in requests:
        pending.add(transfer(request))
    with ThreadPoolExecutor(4) as pool:
        counts = [pool.submit(pending.wait) for _ in range(4)]
        for request in requests[:2]:
            request.end.set()
        assert not any(count.done() for count in counts)
        requests[2].end.set()
        assert sum(count.result() for count in counts) == 3


def test_of_threads_that_wait_together_one_meets_the_error() -> None:
    pending, request = Pending(), Slow(number=5)
    pending.add(transfer(request))
    with ThreadPoolExecutor(3) as pool:
        ends = [pool.submit(pending.wait) for _ in range(3)]
        request.end.set()
        errors = [end.exception() for end in ends]
    assert [type(error) for error in errors if error] == [type(transfer_error(5, "read", "f"))]
    assert pending.wait() == 0


def test_an_interrupted_wait_leaves_everything_to_the_next() -> None:
    pending = Pending()
    requests = [Slow(number=5), Slow(wakes=KeyboardInterrupt), Slow()]
    for request in requests:
        pending.add(transfer(request))
        request.end.set()
    with pytest.raises(KeyboardInterrupt):
        pending.wait()
    with pytest.raises(OSError, match="Input/output error"):
        pending.wait()
    assert pending.wait() == 0


def test_what_has_succeeded_is_let_go_of_and_what_failed_is_not() -> None:
    pending = Pending()
    pending.add(transfer(Ended((0, 5, False, 0))), forget=True)
    for _ in range(3 * MANY):
        pending.add(transfer(Ended((1, 0, False, 0))), forget=True)
    assert len(pending._transfers) <= MANY + 1
    with pytest.raises(OSError, match="Input/output error"):
        pending.wait()


def test_a_file_closed_by_one_thread_while_another_waits_stays_open_that_long(
    tmp_path: Path, backend: str
) -> None:
    options = ds_aio.Options(block_size=4096, queue_depth=1, backend=backend)
    data = torch.arange(2_000_000)
    for _ in range(3):
        file = ds_aio.open(tmp_path / "f", "w", options=options)
        file.write(data)
        with ThreadPoolExecutor(2) as pool:
            ends = [pool.submit(file.wait), pool.submit(file.close)]
            for end in ends:
                end.result()
        out = torch.empty_like(data)
        ds_aio.aio_handle().sync_pread(out, str(tmp_path / "f"))
        assert torch.equal(out, data)


def test_a_wait_counts_only_what_nobody_waited_for(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345678")
    with ds_aio.open(tmp_path / "f") as file:
        first, _ = file.read_into(bytearray(8)), file.read_into(bytearray(8))
        first.wait()
        assert file.wait() == 1
        with pytest.raises(ShortFile):
            file.read_into(bytearray(9)).wait()
        assert file.wait() == 0
