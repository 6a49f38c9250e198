"""Work in flight, as callers hold it."""

from __future__ import annotations

import asyncio
import itertools
import operator
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, SupportsIndex

from ds_aio.buffers import Span
from ds_aio.engine import Engine, RawFile, RawRequest
from ds_aio.errors import UnfitBuffer, transfer_error


class Transfer:
    """A read or write under way. Wait for it, or `await` it.

    The memory belongs to the transfer until it is done. It is kept alive meanwhile; letting go of a
    transfer that is still under way blocks until it is done.

    Attributes:
        waited: Somebody has waited for it, and so knows of an error.
    """

    def __init__(
        self,
        request: RawRequest,
        *,
        action: str,
        path: str,
        offset: int,
        wanted: int,
        on_done: Callable[[], None] | None = None,
    ) -> None:
        self._request: RawRequest = request
        self._action = action
        self._path = path
        self._offset = offset
        self._wanted = wanted
        self._on_done = on_done
        self.waited = False

    def done(self) -> bool:
        """True once `wait` would not block."""
        return self._request.done()

    def settle(self) -> None:
        """Blocks until done, whatever the outcome, and lets go of buffers and file.

        `wait` still raises the error.
        """
        self._request.wait()
        self._request = Ended(self._request.outcome())
        self._look_back()

    def wait(self) -> None:
        """Blocks until done; may be called again.

        Raises:
            TransferError: With path, offset, wanted and done bytes.
        """
        self.settle()
        self.waited = True
        done, number, ended, offset = self._request.outcome()
        if number or ended:
            raise transfer_error(
                number, self._action, self._path, offset=offset, wanted=self._wanted, done=done
            )

    def _look_back(self) -> None:
        # Taken before it is looked at: another thread may wait, too.
        on_done, self._on_done = self._on_done, None
        if on_done is not None:
            on_done()

    def succeeded(self) -> bool:
        """True once done without an error."""
        if not self.done():
            return False
        _, number, ended, _ = self._request.outcome()
        return not (number or ended)

    def result(self) -> int:
        """Waits; the number of bytes moved."""
        self.wait()
        return self._wanted

    def __await__(self) -> Generator[Any, None, int]:
        if not self.done():
            yield from asyncio.to_thread(self._request.wait).__await__()
        return self.result()

    def __repr__(self) -> str:
        state = "done" if self.done() else "under way"
        return (
            f"<{self._action} of {self._wanted} bytes at {self._offset} of {self._path!r}, {state}>"
        )


class Ended:
    """A request that is over: (bytes done, errno, file ended early, offset of the fault)."""

    def __init__(self, outcome: tuple[int, int, bool, int]) -> None:
        self._outcome = outcome

    def done(self) -> bool:
        return True

    def wait(self) -> None:
        return

    def outcome(self) -> tuple[int, int, bool, int]:
        return self._outcome


class _Joined:
    """Several requests as one."""

    def __init__(self, parts: Sequence[RawRequest]) -> None:
        self._parts = parts

    def done(self) -> bool:
        return all(part.done() for part in self._parts)

    def wait(self) -> None:
        for part in self._parts:
            part.wait()

    def outcome(self) -> tuple[int, int, bool, int]:
        outcomes = [part.outcome() for part in self._parts]
        _, number, ended, offset = next((o for o in outcomes if o[1] or o[2]), outcomes[0])
        return sum(o[0] for o in outcomes), number, ended, offset


LONGEST_FILE = (1 << 63) - 1

# What goes where: (spans in the order of the bytes, file offset of the first).
Placed = tuple[Sequence[Span], int]
# The device starts on so many pieces while Python describes the next.
PIECES_AT_ONCE = 256


def begin(
    engine: Engine,
    file: RawFile,
    path: str,
    placed: Iterable[Placed],
    *,
    write: bool,
    here: bool = False,
    close: bool = False,
) -> Transfer:
    """Starts moving bytes between memory and `file`. A read past the end touches no memory.

    `here` lets the calling thread do short work itself; `close` closes the file after it.
    """
    pieces = iter(placed)
    requests: list[RawRequest] = []
    first, wanted = 0, 0
    while batch := list(itertools.islice(pieces, PIECES_AT_ONCE)):
        ranges = [(_whole(at), sum([span.nbytes for span in spans])) for spans, at in batch]
        first = first if requests else ranges[0][0]
        wanted += sum([length for _, length in ranges])
        refused = _refuse(file, ranges, write)
        if refused is not None:
            requests.append(refused)
            continue
        segments = [(span.address, span.nbytes) for spans, _ in batch for span in spans]
        keep = (file, [span.keep for spans, _ in batch for span in spans])
        requests.append(
            engine.submit(file, write=write, ranges=ranges, segments=segments, keep=keep, here=here)
        )

    def look_back() -> None:
        if file.refused:
            engine.note(f"page cache used: O_DIRECT opens {path!r} but transfers are refused")
        if close:
            file.close()

    return Transfer(
        requests[0] if len(requests) == 1 else _Joined(requests or [Ended((0, 0, False, 0))]),
        action="write" if write else "read",
        path=path,
        offset=first,
        wanted=wanted,
        on_done=look_back,
    )


def _whole(offset: SupportsIndex) -> int:
    try:
        return operator.index(offset)
    except TypeError:
        raise UnfitBuffer(f"offset {offset!r}: bytes are counted in whole numbers") from None


def _refuse(file: RawFile, ranges: Sequence[tuple[int, int]], write: bool) -> Ended | None:
    """The end of a request that cannot begin."""
    lowest = min([offset for offset, _ in ranges])
    if lowest < 0:
        raise UnfitBuffer(f"offset {lowest} lies before the start of the file")
    highest = max([offset + length for offset, length in ranges])
    if highest > LONGEST_FILE:
        raise UnfitBuffer(f"no file has a byte {highest - 1}: the last offset is {LONGEST_FILE}")
    if write or not file.regular:
        return None
    size = file.size()
    if max([offset + length if length else 0 for offset, length in ranges]) > size:
        return Ended((0, 0, True, size))
    return None
