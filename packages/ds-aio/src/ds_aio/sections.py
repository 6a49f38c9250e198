"""The `aio` section of a training configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# Older releases of ds_nvme_tune print switches as strings.
_SPELLINGS = {"true": True, "false": False}


def _switch(default: bool, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc, "spellings": _SPELLINGS})


@dataclass(frozen=True)
class AioSection:
    """How tensors are moved to and from storage."""

    block_size: int = field(
        default=1048576,
        metadata={"doc": "Longest single transfer in bytes.", "ge": 1, "le": 1 << 30, "size": True},
    )
    queue_depth: int = field(
        default=8, metadata={"doc": "Transfers under way at once, a thread.", "ge": 1, "le": 32768}
    )
    intra_op_parallelism: int = field(
        default=1,
        metadata={
            "doc": "Threads that share the work of one request.",
            "ge": 1,
            "le": 1024,
            "aliases": ("thread_count",),
        },
    )
    single_submit: bool = _switch(False, "Hand transfers to the kernel one by one, not in batches.")
    overlap_events: bool = _switch(True, "Send further transfers while earlier ones are under way.")
    use_gds: bool = _switch(False, "Move device tensors with GPUDirect Storage; fails without it.")

    def __post_init__(self) -> None:
        for name in ("single_submit", "overlap_events", "use_gds"):
            value = getattr(self, name)
            if value in _SPELLINGS:
                # The one place where a frozen section changes: words become what they mean.
                object.__setattr__(self, name, _SPELLINGS[value])
