"""How fast a collective was, by the usual two measures."""

from __future__ import annotations

from typing import NamedTuple


class Bandwidth(NamedTuple):
    """Bytes a second.

    `algorithm`: the data of the operation over its time. `bus`: what went over each link, which
    can be held against the hardware whatever the number of ranks.
    """

    algorithm: float
    bus: float


_ALL_TO_ONE_SHARE = frozenset(
    {"reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "scatter"}
)
_GATHERING = frozenset({"all_gather", "all_gather_into_tensor", "gather", "all_gather_object"})
_WHOLE = frozenset({"broadcast", "reduce", "send", "recv", "isend", "irecv"})


def bandwidth(op: str, nbytes: int, world_size: int, seconds: float) -> Bandwidth | None:
    """Bandwidths of a collective of `world_size` ranks whose input on a rank is `nbytes`.

    None for an operation without a formula, or if nothing was sent or no time passed.
    """
    if nbytes <= 0 or seconds <= 0 or world_size < 1:
        return None
    share = (world_size - 1) / world_size
    if op in ("all_reduce", "all_reduce_coalesced", "inference_all_reduce"):
        return Bandwidth(nbytes / seconds, 2 * share * nbytes / seconds)
    if op in _GATHERING:
        rate = world_size * nbytes / seconds
        return Bandwidth(rate, share * rate)
    if op in _ALL_TO_ONE_SHARE:
        return Bandwidth(nbytes / seconds, share * nbytes / seconds)
    if op in _WHOLE:
        return Bandwidth(nbytes / seconds, nbytes / seconds)
    return None
