"""A byte-level GPT: rotary positions, fused attention, tied embeddings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 256


@dataclass(frozen=True)
class GPTShape:
    """Sizes of the model; the defaults give 10.7 M parameters."""

    layers: int = 6
    width: int = 384
    heads: int = 6
    context: int = 256


class Attention(nn.Module):
    """Causal self-attention with rotary positions (Su et al., 2021)."""

    def __init__(self, shape: GPTShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        half = shape.width // shape.heads // 2
        angles = torch.outer(torch.arange(shape.context), 10_000.0 ** (-torch.arange(half) / half))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        qkv = self.qkv(hidden).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(
            self.rotate(query), self.rotate(key), value, is_causal=True
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def rotate(self, heads: Tensor) -> Tensor:
        """Turn pairs of channels by an angle that grows with the position."""
        length = heads.shape[-2]
        cos, sin = self.cos[:length], self.sin[:length]
        first, second = heads.chunk(2, dim=-1)
        turned = torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)
        return turned.to(heads.dtype)


class Block(nn.Module):
    """Attention and feed-forward, each on normalised input and added to the stream."""

    def __init__(self, shape: GPTShape) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(shape.width)
        self.attention = Attention(shape)
        self.norm2 = nn.LayerNorm(shape.width)
        self.feed_forward = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width),
            nn.GELU(),
            nn.Linear(4 * shape.width, shape.width),
        )

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.norm1(hidden))
        return hidden + self.feed_forward(self.norm2(hidden))


class GPT(nn.Module):
    """Predicts the next byte; `forward(tokens, targets)` is the mean loss in nats a byte."""

    def __init__(self, shape: GPTShape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(VOCABULARY, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, VOCABULARY, bias=False)
        self.apply(self._initialise)
        for block in self.blocks:  # the stream's variance must not grow with depth
            for layer in (block.attention.out, block.feed_forward[2]):
                nn.init.normal_(layer.weight, std=0.02 / (2 * shape.layers) ** 0.5)
        self.head.weight = self.embed.weight

    def forward(
        self, tokens: Tensor, targets: Tensor | None = None, curriculum_seqlen: int | None = None
    ) -> Tensor:
        """Logits of shape (batch, length, 256), or the loss if there are targets.

        In training only the first `curriculum_seqlen` tokens are seen, if it is given: the keyword
        that the engine passes under `curriculum_learning`.
        """
        if curriculum_seqlen is not None and self.training and targets is not None:
            tokens, targets = tokens[:, :curriculum_seqlen], targets[:, :curriculum_seqlen]
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(self.norm(hidden))
        if targets is None:
            return logits
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.reshape(-1))

    @torch.no_grad()
    def generate(self, prompt: bytes, length: int, *, temperature: float, seed: int) -> bytes:
        """`prompt` and `length` sampled bytes."""
        device = self.embed.weight.device
        generator = torch.Generator(device).manual_seed(seed)
        tokens = torch.tensor(list(prompt), device=device)[None]
        for _ in range(length):
            logits = self(tokens[:, -self.shape.context :])[:, -1].float() / temperature
            chosen = torch.multinomial(logits.softmax(-1), 1, generator=generator)
            tokens = torch.cat((tokens, chosen), dim=1)
        return bytes(tokens[0].tolist())

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
