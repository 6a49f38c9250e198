"""Lets a process on the CPU keep the memory that one micro-batch frees for the next one.

glibc gives memory at the end of its heap back to the kernel beyond a threshold, twice the size of
the largest block that was taken from the kernel by itself and freed (mallopt(3), "dynamic mmap
threshold"). A process that has freed no large block yet therefore gives the activations of a
micro-batch back as soon as its backward pass is over and takes them afresh, page by page and
zeroed, for the next. How much depends on what happens to lie where, and changes from run to run.
"""

from __future__ import annotations

import torch

LARGEST = 31 << 20
"""Bytes of a block that glibc learns from; from 32 MiB on it does not."""


def keep_freed_memory() -> None:
    """Take one large block and free it, untouched: from then on 62 MiB may wait to be used again.

    No option is set: `MALLOC_TRIM_THRESHOLD_` and `MALLOC_MMAP_THRESHOLD_` of the environment
    hold as before, and are the way to keep more. Other allocators learn nothing from it.
    """
    torch.empty(LARGEST, dtype=torch.uint8)
