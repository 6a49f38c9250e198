"""fp32 copies of low-precision parameters, which the optimizer updates in their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

LOW_PRECISION = (torch.bfloat16, torch.float16)


class MasterWeights:
    """Maps each low-precision parameter to an fp32 master, and is the identity for others.

    Args:
        params: the trained parameters, in the format they compute in.
        originals: fp32 values from before the cast, where the caller still has them: a master
            starts from these, so that nothing is lost to rounding.
        enabled: false keeps no masters at all (pure low-precision training).
    """

    def __init__(
        self,
        params: Iterable[nn.Parameter],
        *,
        originals: Mapping[nn.Parameter, Tensor] | None = None,
        enabled: bool = True,
    ) -> None:
        originals = originals or {}
        self._master: dict[nn.Parameter, nn.Parameter] = {}
        for param in params:
            if enabled and param.dtype in LOW_PRECISION:
                value = originals.get(param, param.detach()).detach().to(torch.float32, copy=True)
                self._master[param] = nn.Parameter(value, requires_grad=param.requires_grad)
        self._low: list[Tensor] = list(self._master)
        self._high: list[Tensor] = list(self._master.values())

    def __getitem__(self, param: nn.Parameter) -> nn.Parameter:
        return self._master.get(param, param)

    def __len__(self) -> int:
        return len(self._master)

    def refresh_params(self) -> None:
        """Write every master's value, rounded, into its parameter."""
        if self._low:
            with torch.no_grad():
                torch._foreach_copy_(self._low, self._high)

    def refresh_masters(self) -> None:
        """Take the parameters' present values as the masters'."""
        if self._low:
            with torch.no_grad():
                torch._foreach_copy_(self._high, self._low)
