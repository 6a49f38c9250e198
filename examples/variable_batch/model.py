"""Attention over sentences of any length, then a feed-forward part of fixed width."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

PADDING = 0.0


def lengths_of(batch: Tensor) -> Tensor:
    """Real length of each sentence of `(batch, sentence, embedding)`: up to its padding."""
    return (batch != PADDING).any(dim=2).sum(dim=1)


class Attention(nn.Module):
    """`(B, S, E)` with any S to `(B, M, E)` with the data set's longest M."""

    def __init__(self, width: int, longest: int, heads: int = 1) -> None:
        super().__init__()
        self.longest, self.heads = longest, heads
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, sentences: Tensor) -> Tensor:
        batch, size, width = sentences.shape
        shape = (batch, size, self.heads, width // self.heads)
        query, key, value = (
            part.view(shape).transpose(1, 2) for part in self.qkv(sentences).chunk(3, dim=2)
        )
        real = torch.arange(size, device=sentences.device) < lengths_of(sentences)[:, None]
        causal = torch.ones(size, size, dtype=torch.bool, device=sentences.device).tril()
        mask = causal & real[:, None, :]  # (B, S, S): one mask a sentence
        seen = scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None])
        seen = seen.transpose(1, 2).reshape(batch, size, width) * real[:, :, None]
        return pad(seen, (0, 0, 0, self.longest - size))


class FeedForward(nn.Module):
    """`(B, M, E)` to one number a sentence."""

    def __init__(self, width: int, longest: int, hidden: int = 128) -> None:
        super().__init__()
        self.inner = nn.Linear(width * longest, hidden)
        self.outer = nn.Linear(hidden, 1)

    def forward(self, seen: Tensor) -> Tensor:
        return self.outer(torch.relu(self.inner(seen.flatten(1))))
