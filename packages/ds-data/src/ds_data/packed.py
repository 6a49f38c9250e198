"""Sequences laid end to end for varlen attention, with the places where each begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ds_data.errors import RuleError


@dataclass(frozen=True, eq=False)
class PackedBatch:
    """One row of tokens that holds several sequences.

    Attributes:
        input_ids: `(tokens,)`, padded at the end if a length was asked for.
        position_ids: `(tokens,)` int64, starting at 0 in each sequence (0 in the padding).
        labels: `input_ids` with `ignore_index` at the first token of each sequence and in the
            padding, so that a shifted loss never crosses a border.
        cu_seqlens: `(sequences + 1,)` int32: where each begins, as varlen attention wants it.
            Padding is not a sequence.
        max_seqlen: length of the longest sequence.
    """

    input_ids: Tensor
    position_ids: Tensor
    labels: Tensor
    cu_seqlens: Tensor
    max_seqlen: int

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> PackedBatch:
        """The same batch on another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> PackedBatch:
        """The same batch in page-locked memory (torch's loader calls this)."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, change: Callable[[Tensor], Tensor]) -> PackedBatch:
        return PackedBatch(
            input_ids=change(self.input_ids),
            position_ids=change(self.position_ids),
            labels=change(self.labels),
            cu_seqlens=change(self.cu_seqlens),
            max_seqlen=self.max_seqlen,
        )

    def attention_mask(self) -> Tensor:
        """Boolean `(tokens, tokens)`: causal, and only within one sequence."""
        total = len(self.input_ids)
        device = self.input_ids.device
        starts = torch.zeros(total, dtype=torch.int64, device=device)
        starts[self.cu_seqlens[:-1].long()] = 1
        owner = starts.cumsum(0)
        owner[int(self.cu_seqlens[-1]) :] = 0
        same = owner[:, None] == owner[None, :]
        real = owner != 0
        return same.tril() & real[:, None] | torch.eye(total, dtype=torch.bool, device=device)


def pack_sequences(
    sequences: Sequence[Tensor],
    *,
    pad_to: int | None = None,
    pad_id: int = 0,
    ignore_index: int = -100,
) -> PackedBatch:
    """Lay 1-D token tensors end to end.

    Args:
        sequences: at least one, none of them empty; of one dtype.
        pad_to: length of the result; the sum of the lengths if None.
    """
    sizes = [len(sequence) for sequence in sequences]
    if not sizes or min(sizes) < 1:
        raise RuleError("pack_sequences needs at least one sequence, and no empty one")
    total = sum(sizes)
    if pad_to is not None and pad_to < total:
        raise RuleError(f"{total} tokens do not fit in pad_to={pad_to}")
    padding = (pad_to or total) - total
    edges = torch.tensor([0, *sizes]).cumsum(0)
    tokens = torch.cat([*sequences, sequences[0].new_full((padding,), pad_id)])
    positions = torch.arange(total) - torch.repeat_interleave(edges[:-1], torch.tensor(sizes))
    labels = tokens.clone()
    labels[edges[:-1]] = ignore_index
    labels[total:] = ignore_index
    return PackedBatch(
        input_ids=tokens,
        position_ids=torch.cat([positions, positions.new_zeros(padding)]),
        labels=labels,
        cu_seqlens=edges.to(torch.int32),
        max_seqlen=max(sizes),
    )
