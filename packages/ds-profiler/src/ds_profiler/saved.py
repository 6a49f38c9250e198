"""How much memory the forward pass keeps for the backward pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ds_profiler.modules import buffers_of, parameters_of


class SavedBytes:
    """Context: books the storages that autograd saves, each once, by the running module.

    Parameters and buffers are left out: they are there anyway. What a checkpoint drops and
    recomputes is not booked.

    Args:
        root: the model.
        where: tells the number of the running module.
        stand_in: what the forward pass sees in place of a parameter or buffer (fake tensors).
    """

    def __init__(
        self,
        root: nn.Module,
        where: Callable[[], int],
        stand_in: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    ) -> None:
        self._where = where
        self._own = [
            version
            for tensor in (*parameters_of(root), *buffers_of(root))
            if _has_storage(tensor)
            for version in (tensor, stand_in(tensor))
        ]
        self._ignored = {tensor.untyped_storage()._cdata for tensor in self._own}
        self._kept: dict[int, Tensor] = {}  # alive, so that no storage's identity is used again
        self.by_module: dict[int, int] = defaultdict(int)
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack)

    def __enter__(self) -> SavedBytes:
        self._hooks.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._hooks.__exit__(*exc)
        self._kept.clear()

    def _pack(self, tensor: Tensor) -> Tensor:
        if _has_storage(tensor):
            storage = tensor.untyped_storage()
            identity = storage._cdata
            if identity not in self._ignored and identity not in self._kept:
                self._kept[identity] = tensor.detach()
                self.by_module[self._where()] += storage.nbytes()
        return tensor.detach()  # returning `tensor` itself could make a cycle with its node


def _unpack(tensor: Tensor) -> Tensor:
    return tensor


def _has_storage(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and not getattr(tensor, "is_nested", False)
