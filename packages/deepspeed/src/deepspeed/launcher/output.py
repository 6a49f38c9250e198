"""Passing on what ranks write, while keeping their last lines."""

from __future__ import annotations

import os
import re
import select
from collections.abc import Sequence
from pathlib import Path

_READ = 65536
_WRITE = 4096  # poll promises that a pipe takes this much without blocking
_HELD = 1 << 20
_TAIL = 16384
_LINES = 30
_LONGEST = 300
_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?")  # torch's, before an uncaught exception
_SEEN = 40  # lines that whoever looks at the terminal has before his eyes


class Sink:
    """One of our own output descriptors, written only when it takes bytes without blocking."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.broken = False
        self.tail = Tail()
        self._pending = bytearray()

    @property
    def waiting(self) -> bool:
        """Whether bytes wait for the reader."""
        return bool(self._pending)

    @property
    def full(self) -> bool:
        """Whether ranks should be read no further until the reader has caught up."""
        return len(self._pending) > _HELD

    def put(self, data: bytes) -> None:
        """Queue `data`; dropped once the reader has gone."""
        if not self.broken:
            self._pending += data
            self.tail.add(data)

    def ready(self, seconds: float) -> bool:
        """Whether the reader takes bytes within `seconds`."""
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        return bool(poll.poll(1000 * seconds))

    def write_some(self) -> None:
        """Write what fits now. The caller has polled the descriptor."""
        try:
            del self._pending[: os.write(self.fd, self._pending[:_WRITE])]
        except BlockingIOError:
            return
        except OSError:  # EPIPE, EIO: the reader has gone
            self.broken = True
            self._pending.clear()


class Tail:
    """The last bytes that a rank, or all of them, wrote."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, data: bytes) -> None:
        """Append, forgetting what is too old."""
        self._bytes += data
        if len(self._bytes) > 2 * _TAIL:
            del self._bytes[:-_TAIL]

    def lines(self, count: int = _LINES) -> list[str]:
        """The last `count` lines; of a progress bar only its last state."""
        lines = self._bytes.decode(errors="replace").replace("\r\n", "\n").split("\n")
        shown = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in lines]
        while shown and not shown[-1]:
            shown.pop()
        return shown[-count:]

    def ends_with(self, line: str) -> bool:
        """Whether a reader still sees `line`, be it another rank's."""
        seen = (_RANK_PREFIX.sub("", near) for near in self.lines(_SEEN))
        return _RANK_PREFIX.sub("", line) in seen

    @classmethod
    def of_file(cls, path: Path) -> Tail:
        """The last bytes of a log file."""
        tail = cls()
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            tail.add(file.read())
        return tail


class Source:
    """The read end of one rank's output."""

    def __init__(self, fd: int, sink: Sink, tail: Tail) -> None:
        self.fd = fd
        self.sink = sink
        self.tail = tail
        self._partial = b""
        os.set_blocking(fd, False)

    def read_some(self) -> int | None:
        """Pass on what can be read now: how much, None when nothing is there, 0 at the end."""
        try:
            data = os.read(self.fd, _READ)
        except BlockingIOError:
            return None
        except OSError:  # EIO: the far end of a terminal closed
            data = b""
        # whole lines at once, so that lines of different ranks do not mix; a progress bar ends
        # its lines with a carriage return
        whole = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if whole:
            self.sink.put(self._partial + data[:whole])
            self._partial = data[whole:]
        else:
            self._partial += data
        self.tail.add(data)
        return len(data)

    def flush(self) -> None:
        """Pass on an unfinished line (a prompt, or the last words of a rank)."""
        self.sink.put(self._partial)
        self._partial = b""

    def drain(self) -> None:
        """Take what is left without waiting for those who still hold the other end."""
        while self.read_some():
            pass
        self.flush()


def last_word(lines: Sequence[str]) -> str:
    """The line that says why a program ended: its exception's if there is one, else the last."""
    plain = [_RANK_PREFIX.sub("", line) for line in lines]
    starts = [place for place, line in enumerate(plain) if line.startswith("Traceback (most")]
    for place in range(starts[-1] + 1 if starts else len(plain), len(plain)):
        if plain[place] and not plain[place].startswith(" "):
            return lines[place]
    return lines[-1] if lines else ""


def without_prefix(line: str) -> str:
    """A line without `deepspeed: ` or torch's `[rank0]: ` before it, cut where it is very long."""
    bare = _RANK_PREFIX.sub("", line).removeprefix("deepspeed: ")
    return bare if len(bare) <= _LONGEST else f"{bare[:_LONGEST]}..."
