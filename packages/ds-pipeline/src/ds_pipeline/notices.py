"""Short notices from one process to another of the same machine, through a pipe.

A message of the process group passes a thread on either side, and each needs a core while both
stages compute. Whoever writes to a pipe wakes the reader itself. A process that ends closes its
end, which the other one sees.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
from datetime import timedelta

Words = tuple[int, int, int, int]

_FORMAT = struct.Struct("4q")

GOODBYE: Words = (0, 0, 0, -1)
"""The last notice; a forked child may hold the pipe open after its end was closed here."""


LONGEST = 2**31 - 1
"""Milliseconds that poll(2) can wait, more than three weeks."""


class Bell:
    """The sender's end.

    Attributes:
        number: file descriptor to open in this process for the other end.
    """

    def __init__(self) -> None:
        self.number, self._write = os.pipe2(os.O_CLOEXEC)
        self._process = os.getpid()

    def heard(self) -> None:
        """The other end is open: from now on nobody else reads."""
        os.close(self.number)
        self.number = -1

    def ring(self, words: Words) -> None:
        """Send a notice.

        Raises:
            OSError: the other end is gone.
        """
        os.write(self._write, _FORMAT.pack(*words))

    def close(self) -> None:
        if self._write < 0:
            return
        if self._process == os.getpid():  # a forked child speaks for nobody
            os.set_blocking(self._write, False)
            with contextlib.suppress(OSError):  # nobody listens
                self.ring(GOODBYE)
        os.close(self._write)
        self._write = -1
        if self.number >= 0:
            self.heard()


class Ear:
    """The receiver's end.

    Args:
        process: that made the bell.
        number: of the bell.
        patience: how long to wait for a notice; None is for ever.
    """

    def __init__(self, process: int, number: int, patience: timedelta | None) -> None:
        self._fd = os.open(f"/proc/{process}/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
        self._patience = patience
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def listen(self) -> Words:
        """Wait for the next notice.

        Raises:
            OSError: none came in time, or the other end is gone.
        """
        limit = None
        if self._patience is not None:
            limit = min(self._patience.total_seconds() * 1000, LONGEST)
        if not self._poll.poll(limit):
            raise TimeoutError(f"no notice within {self._patience}")
        found = os.read(self._fd, _FORMAT.size)  # written whole, so read whole
        words: Words = _FORMAT.unpack(found) if found else GOODBYE
        if words == GOODBYE:
            raise ConnectionResetError("the other end was closed")
        return words

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
