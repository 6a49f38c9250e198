"""Faults to inject into an engine, for tests of what is built on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Faults:
    """What goes wrong, applied where the kernel would answer.

    Attributes:
        report_alignment: Alignment the file system claims direct I/O needs (0: ask the kernel).
        enforce_alignment: Alignment it insists on, with EINVAL (0: leave that to the kernel).
        refuse_open: Opening with O_DIRECT fails.
        refuse_transfer: O_DIRECT can be opened, but each direct transfer answers EINVAL.
        fail_errno: Answered for transfers that cover file offset `fail_offset`.
        fail_times: How often (-1: each time).
        short_limit: Transfers stop after so many bytes (0: never).
    """

    report_alignment: int = 0
    enforce_alignment: int = 0
    refuse_open: bool = False
    refuse_transfer: bool = False
    fail_errno: int = 0
    fail_offset: int = 0
    fail_times: int = -1
    short_limit: int = 0
