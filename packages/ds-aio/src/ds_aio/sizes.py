"""Byte counts as people write them."""

from __future__ import annotations

import argparse

_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str | int) -> int:
    """Bytes in `1048576`, `128K`, `1M` or `4G`.

    Raises:
        ValueError: The text is no such size.
    """
    plain = str(text).strip().upper().removesuffix("B").removesuffix("I")
    unit = plain[-1:] if plain[-1:] in _FACTORS else ""
    try:
        return int(float(plain.removesuffix(unit)) * _FACTORS[unit])
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no size: write 1048576, 128K, 1M or 4G") from None


def size_argument(text: str) -> int:
    """`parse_size` for argparse, which shows the message; at least one byte."""
    try:
        size = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not 1 <= size < 1 << 63:
        raise argparse.ArgumentTypeError(f"{text!r}: at least one byte, and less than 8 EiB")
    return size


def count_argument(text: str) -> int:
    """A number of repetitions for argparse: at least one."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number of at least 1")
    return int(text)


def show_size(count: int) -> str:
    """The shortest exact way to write a byte count."""
    for unit in "GMK":
        if count and count % _FACTORS[unit] == 0:
            return f"{count // _FACTORS[unit]}{unit}"
    return str(count)
