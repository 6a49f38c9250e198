"""Bytes of real text with some of them hidden, in batches that are a function of the step."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

sys.path.append(str(Path(__file__).resolve().parents[1] / "gpt"))
from text import read_text

MASK = 256
VOCABULARY = 257
IGNORED = -100
HIDDEN = 0.15
"""Share of hidden bytes: as many in each row, so that every row counts alike in the mean."""


class MaskedText:
    """Rows of `length` bytes; of the hidden ones 80 % read MASK, 10 % any byte, 10 % themselves."""

    def __init__(self, source: Path | None, *, length: int, seed: int) -> None:
        self.train, self.valid = read_text(source)
        self.length, self.seed = length, seed

    def batch(self, step: int, rows: int, part: slice) -> tuple[Tensor, Tensor]:
        """Tokens and labels of `part` of the `rows` rows of a step."""
        return self._rows(self.train, np.random.default_rng((self.seed, step)), rows, part)

    def validation(self, rows: int) -> tuple[Tensor, Tensor]:
        """The same rows of held-out text at each call."""
        return self._rows(self.valid, np.random.default_rng(self.seed), rows, slice(None))

    def _rows(
        self, text: np.ndarray, random: np.random.Generator, rows: int, part: slice
    ) -> tuple[Tensor, Tensor]:
        starts = random.integers(0, len(text) - self.length, size=rows)
        tokens = np.stack([text[at : at + self.length] for at in starts]).astype(np.int64)
        hidden = random.permuted(np.tile(np.arange(self.length), (rows, 1)), axis=1)
        hidden = hidden[:, : max(1, round(self.length * HIDDEN))]
        true = np.take_along_axis(tokens, hidden, axis=1)
        labels = np.full_like(tokens, IGNORED)
        np.put_along_axis(labels, hidden, true, axis=1)
        luck, other = random.random(hidden.shape), random.integers(0, MASK, hidden.shape)
        shown = np.where(luck < 0.8, MASK, np.where(luck < 0.9, other, true))
        np.put_along_axis(tokens, hidden, shown, axis=1)
        return torch.from_numpy(tokens[part]), torch.from_numpy(labels[part])
