"""A data set of sentences of random length, with the three callbacks of dynamic batching."""

from __future__ import annotations

import torch
from model import PADDING, lengths_of
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

Sample = tuple[Tensor, Tensor]


class Sentences(Dataset[Sample]):
    """Random sentences; the label of each is its length."""

    def __init__(self, count: int, *, shortest: int, longest: int, width: int, seed: int = 0):
        random = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(shortest, longest + 1, (count,), generator=random).tolist()
        self.longest = longest
        self.sentences = [torch.rand(n, width, generator=random) + 0.1 for n in self.lengths]

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, index: int) -> Sample:
        return self.sentences[index], torch.tensor([float(self.lengths[index])])

    @staticmethod
    def batch_collate_fn(samples: list[Sample]) -> Sample:
        """Sentences of different lengths to `(B, S, E)`, S being the longest."""
        sentences, labels = zip(*samples, strict=True)
        return pad_sequence(sentences, batch_first=True, padding_value=PADDING), torch.stack(labels)

    @staticmethod
    def sample_padding_fn(sample: Sample, size: int) -> Sample:
        """A sentence `(S, E)` to `(size, E)`."""
        sentence, label = sample
        return pad(sentence, (0, 0, 0, size - len(sentence)), value=PADDING), label

    @staticmethod
    def batch_seqlens_fn(batch: Sample) -> Tensor:
        """Real length of each sentence of a batch."""
        return lengths_of(batch[0])
