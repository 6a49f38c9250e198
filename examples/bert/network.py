"""BERT's encoder with its masked-language head; layer norms stand before their blocks."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from masked_text import IGNORED, VOCABULARY
from torch import Tensor, nn
from torch.nn import functional


class BertForMaskedLM(nn.Module):
    """`forward(tokens, labels)` is the mean loss, in nats a masked byte."""

    def __init__(self, shape: dict[str, int | float]) -> None:
        super().__init__()
        width, longest = int(shape["hidden_size"]), int(shape["max_seq_length"])
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(longest, width)
        layer = nn.TransformerEncoderLayer(
            width,
            int(shape["num_attention_heads"]),
            int(shape["intermediate_size"]),
            dropout=float(shape["hidden_dropout_prob"]),
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        layers = int(shape["num_hidden_layers"])
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.bias = nn.Parameter(torch.zeros(VOCABULARY))
        self.apply(self._initialise)
        with torch.no_grad():
            self.places.weight.copy_(waves(longest, width))

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        hidden = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        hidden = self.norm(self.encoder(hidden))
        asked = labels != IGNORED  # the head is the dear part: only where something is hidden
        logits = functional.linear(hidden[asked], self.tokens.weight, self.bias)
        return functional.cross_entropy(logits.float(), labels[asked])

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        elif isinstance(module, nn.MultiheadAttention):
            nn.init.normal_(module.in_proj_weight, std=0.02)


def waves(length: int, width: int) -> Tensor:
    """Sines and cosines of the place: a start from which neighbours are found at once."""
    angles = torch.outer(torch.arange(length), 10_000.0 ** (-torch.arange(width // 2) * 2 / width))
    return 0.03 * torch.cat((angles.sin(), angles.cos()), dim=1)


class BertMultiTask:
    """Holds the module as `network`, as the tutorial's wrapper does."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.manual_seed(args.seed)
        shape = json.loads(Path(args.cf).read_text())
        shape["max_seq_length"] = args.max_seq_length or shape["max_seq_length"]
        args.max_seq_length = shape["max_seq_length"]
        self.network = BertForMaskedLM(shape)
