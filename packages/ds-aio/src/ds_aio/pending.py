"""Transfers that somebody will wait for later, all at once."""

from __future__ import annotations

import threading

from ds_aio.errors import AioError
from ds_aio.staging import StagedTransfer
from ds_aio.transfer import Transfer

# From so many on, what has succeeded is let go of, and the files of what has ended are.
MANY = 64


class Pending:
    """Transfers begun and not yet waited for. Threads may begin and wait side by side."""

    def __init__(self) -> None:
        self._transfers: list[Transfer | StagedTransfer] = []
        self._held: list[Transfer | StagedTransfer] = []
        self._look_at = MANY
        self._mutex = threading.Lock()

    def add(self, transfer: Transfer | StagedTransfer, *, forget: bool = False) -> None:
        """Keeps a transfer for the next `wait`, which counts it unless `forget` lets go of it.

        With `forget` those that have succeeded make room for it; errors stay.
        """
        with self._mutex:
            if forget and len(self._transfers) >= MANY:
                self._transfers = [t for t in self._transfers if not t.succeeded()]
            self._transfers.append(transfer)
            self._held.append(transfer)
            if len(self._held) >= self._look_at:
                self._let_go()

    def settle(self) -> None:
        """Waits until all that have begun have ended, and lets go of their files; counts none."""
        with self._mutex:
            known = list(self._transfers)
        for transfer in known:
            transfer.settle()

    def _let_go(self) -> None:
        """Files and buffers of what has ended are not kept until somebody waits."""
        for transfer in self._held:
            if transfer.done():
                transfer.settle()
        self._held = [t for t in self._held if not t.done()]
        self._look_at = max(MANY, 2 * len(self._held))

    def wait(self) -> int:
        """Waits for all that have begun; how many nobody had waited for before.

        Of several threads that wait for the same transfers each returns when all have ended, and
        one of them counts a transfer and raises its error.

        Raises:
            TransferError: The first of theirs, after all have ended.
        """
        with self._mutex:
            known = list(self._transfers)
        for transfer in known:
            transfer.settle()  # an interrupt here leaves all to the next `wait`
        with self._mutex:
            ended = {id(transfer) for transfer in known}
            mine = [t for t in self._transfers if id(t) in ended]
            self._transfers = [t for t in self._transfers if id(t) not in ended]
            self._held = [t for t in self._held if id(t) not in ended]
        first: AioError | None = None
        fresh = [transfer for transfer in mine if not transfer.waited]
        try:
            for transfer in fresh:
                try:
                    transfer.wait()
                except AioError as error:
                    first = first or error
        finally:
            with self._mutex:
                self._transfers[:0] = [t for t in fresh if not t.waited]
        if first is not None:
            raise first
        return len(fresh)
