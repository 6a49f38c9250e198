"""What one operation costs."""

from __future__ import annotations

from typing import NamedTuple


class Cost(NamedTuple):
    """Work of an operation: multiply-accumulates, with other floating-point operations beside them.

    A multiply-accumulate is two floating-point operations. Matrix products, convolutions and
    attention are `macs`; activations, norms, poolings and sums are `other`.
    """

    macs: int = 0
    other: int = 0

    @property
    def flops(self) -> int:
        """`2 * macs + other`."""
        return 2 * self.macs + self.other

    def plus(self, other: Cost) -> Cost:
        """Component-wise sum."""
        return Cost(self.macs + other.macs, self.other + other.other)


FREE = Cost()
