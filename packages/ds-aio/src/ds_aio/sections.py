"""The `aio` section of a training configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

# ds_nvme_tune has always printed switches as strings.
Switch = bool | Literal["true", "false"]


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
    single_submit: Switch = field(
        default=False, metadata={"doc": "Hand transfers to the kernel one by one, not in batches."}
    )
    overlap_events: Switch = field(
        default=True, metadata={"doc": "Send further transfers while earlier ones are under way."}
    )
    use_gds: Switch = field(
        default=False,
        metadata={"doc": "Move device tensors with GPUDirect Storage; fails where that is absent."},
    )

    def __post_init__(self) -> None:
        for name in ("single_submit", "overlap_events", "use_gds"):
            value = getattr(self, name)
            if isinstance(value, str):
                # The one place where a frozen section changes: strings become what they mean.
                object.__setattr__(self, name, value == "true")
