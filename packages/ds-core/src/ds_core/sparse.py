"""Row-sparse gradients of embeddings, reduced by exchanging the rows that are there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ds_core.comm import Communicator


def sparse_params(module: nn.Module, *, dense_too: bool) -> list[nn.Parameter]:
    """Weights of embeddings that give sparse gradients.

    Args:
        dense_too: also embeddings whose gradient is dense in memory (`sparse=False`), unless the
            weight is tied to another module, where every row is used.
    """
    users: dict[Tensor, int] = {}
    for child in module.modules():
        for param in child.parameters(recurse=False):
            users[param] = users.get(param, 0) + 1
    found: dict[nn.Parameter, None] = {}
    for child in module.modules():
        if isinstance(child, (nn.Embedding, nn.EmbeddingBag)):
            weight = cast(nn.Parameter, child.weight)
            wanted = child.sparse or (dense_too and users[weight] == 1)
            if wanted and weight.requires_grad:
                found.setdefault(weight)
    return list(found)


class SparseGradients:
    """Reduces the gradients of `params` over the group by gathering rows.

    A gradient that came sparse stays sparse; a dense one stays dense.
    """

    def __init__(self, params: Sequence[nn.Parameter], comm: Communicator) -> None:
        self.params, self._comm = list(params), comm
        self._unused: set[nn.Parameter] = set()
        self._factor = 1.0

    def reduce(self, factor: float, *, local: float = 1.0) -> None:
        """Replace each gradient by (sum over ranks of gradient * local) * factor.

        All ranks call this, each with its own `local`.
        """
        if not self.params:
            return
        rows = [_rows(param) for param in self.params]
        counts = self._gather_counts(rows)
        self._unused, self._factor = set(), factor
        for index, param in enumerate(self.params):
            sizes = counts[:, index].tolist()
            if max(sizes) < 0:
                self._unused.add(param)
                param.grad = None
                continue
            found = rows[index]
            if found is not None and local != 1.0:
                found = (found[0], found[1] * local)
            indices, values = self._gather_rows(param, found, [max(0, n) for n in sizes])
            total = torch.sparse_coo_tensor(
                indices[None], values * factor, tuple(param.shape), check_invariants=False
            ).coalesce()
            was_dense = param.grad is not None and not param.grad.is_sparse
            param.grad = total.to_dense() if was_dense else total

    def undo(self) -> None:
        """Let reduced gradients count once when they are reduced again, with more."""
        for param in self.params:
            if param.grad is not None:
                param.grad = param.grad / (self._comm.world_size * self._factor)

    def unused(self) -> set[nn.Parameter]:
        """Parameters that no rank had a gradient for in the last `reduce`."""
        return self._unused

    def norm_parts(self) -> list[Tensor]:
        """The gradients' non-zero values, for the norm."""
        grads = [param.grad for param in self.params if param.grad is not None]
        return [grad.coalesce().values() if grad.is_sparse else grad for grad in grads]

    def _gather_counts(self, rows: list[tuple[Tensor, Tensor] | None]) -> Tensor:
        device = self.params[0].device
        own = [-1 if found is None else found[0].numel() for found in rows]
        mine = torch.tensor(own, device=device)
        out = mine.new_empty(self._comm.world_size * len(own))
        self._comm.all_gather(out, mine, label="sparse gradient counts").wait()
        return out.view(self._comm.world_size, len(own))

    def _gather_rows(
        self, param: nn.Parameter, found: tuple[Tensor, Tensor] | None, sizes: list[int]
    ) -> tuple[Tensor, Tensor]:
        longest, world = max(sizes), self._comm.world_size
        width = param.shape[1:].numel()
        indices = torch.zeros(longest, dtype=torch.int64, device=param.device)
        values = torch.zeros(longest * width, dtype=param.dtype, device=param.device)
        if found is not None and found[0].numel():
            indices[: found[0].numel()] = found[0]
            values[: found[1].numel()] = found[1].reshape(-1)
        all_indices = indices.new_empty(world * longest)
        all_values = values.new_empty(world * longest * width)
        if longest:
            self._comm.all_gather(all_indices, indices, label="sparse gradient rows").wait()
            self._comm.all_gather(all_values, values, label="sparse gradient values").wait()
        keep = torch.cat(
            [torch.arange(n, device=param.device) + r * longest for r, n in enumerate(sizes)]
        )
        shaped = all_values.view(world * longest, *param.shape[1:])
        return all_indices[keep], shaped[keep]


def _rows(param: nn.Parameter) -> tuple[Tensor, Tensor] | None:
    grad = param.grad
    if grad is None:
        return None
    if grad.is_sparse:
        grad = grad.coalesce()
        return grad.indices()[0], grad.values()
    indices = grad.flatten(1).ne(0).any(dim=1).nonzero().flatten()
    return indices, grad[indices]
