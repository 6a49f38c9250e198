"""The numbers that the reference's manual prints for AlexNet and for BERT-Large come out of ours.

BERT-Large is the manual's `BertForPreTrainingPreLN` at batch 80 and length 128, where some 1159 of
the positions are masked and reach the vocabulary layer. Everything is counted on the meta device.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ds_profiler import ModuleProfile, Profile, get_model_profile, profile

BATCH, LENGTH, MASKED, WIDTH, HEADS, LAYERS, WORDS = 80, 128, 1159, 1024, 16, 24, 30528
GIGA = 1e9


class BertSelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.softmax = nn.Softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = self.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5)
        return (scores @ v).transpose(1, 2).flatten(2)


class BertLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.PreAttentionLayerNorm = nn.LayerNorm(WIDTH)
        self.attention = nn.ModuleDict(
            {"self": BertSelfAttention(), "output": nn.Linear(WIDTH, WIDTH)}
        )
        self.PostAttentionLayerNorm = nn.LayerNorm(WIDTH)
        self.intermediate = nn.Linear(WIDTH, 4 * WIDTH)
        self.output = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        attended = self.attention["self"](self.PreAttentionLayerNorm(x))
        x = x + self.attention["output"](attended)
        return x + self.output(F.gelu(self.intermediate(self.PostAttentionLayerNorm(x))))


class BertModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.positions, self.kinds = nn.Embedding(512, WIDTH), nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        layers = [BertLayer() for _ in range(LAYERS)]
        self.encoder = nn.Sequential(*layers, nn.LayerNorm(WIDTH))
        self.pooler = nn.Linear(WIDTH, WIDTH)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(LENGTH, device=tokens.device)
        x = self.words(tokens) + self.positions(places) + self.kinds(torch.zeros_like(tokens))
        x = self.encoder(self.norm(x))
        return x, torch.tanh(self.pooler(x[:, 0]))


class BertForPreTrainingPreLN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bert = BertModel()
        self.transform, self.norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.decoder = nn.Linear(WIDTH, WORDS)
        self.decoder.weight = self.bert.words.weight
        self.next_sentence = nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
        x, pooled = self.bert(tokens)
        x = self.norm(F.gelu(self.transform(x)))
        return self.decoder(x.flatten(0, 1)[masked]), self.next_sentence(pooled)


@pytest.fixture(scope="module")
def bert() -> Profile:
    with torch.device("meta"):
        model = BertForPreTrainingPreLN()
        tokens = torch.empty(BATCH, LENGTH, dtype=torch.long)
        masked = torch.empty(MASKED, dtype=torch.long)
    return profile(model, tokens, masked)


def module(result: Profile, name: str) -> ModuleProfile:
    return next(found for _, found in result.root.walk() if found.name == name)


def linear_macs(result: Profile) -> int:
    return sum(m.forward.macs for _, m in result.root.walk() if m.kind == "Linear")


def test_alexnet_has_the_documented_flops_macs_and_parameters() -> None:
    with torch.device("meta"):
        sizes = [(3, 64, 11, 4, 2), (64, 192, 5, 1, 2), (192, 384, 3, 1, 1)]
        sizes += [(384, 256, 3, 1, 1), (256, 256, 3, 1, 1)]
        first, second, *rest = [nn.Sequential(nn.Conv2d(*size), nn.ReLU()) for size in sizes]
        features = [first, nn.MaxPool2d(3, 2), second, nn.MaxPool2d(3, 2), *rest]
        head = [nn.Linear(9216, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU()]
        pool = [nn.MaxPool2d(3, 2), nn.AdaptiveAvgPool2d(6), nn.Flatten()]
        model = nn.Sequential(*features, *pool, *head, nn.Linear(4096, 1000))
    shape = (1, 3, 224, 224)
    counts = get_model_profile(model, shape, print_profile=False, as_string=False)
    assert counts == (1_429_741_184, 714_188_480, 61_100_840)


def test_bert_large_has_the_documented_parameters(bert: Profile) -> None:
    assert f"{bert.params / 1e6:.2f}" == "336.23"
    assert f"{module(bert, 'bert').params / 1e6:.2f}" == "335.15"


@pytest.mark.parametrize(
    ("name", "documented"),
    [
        ("bert.encoder.0.attention.self.query", "10.74"),
        ("bert.encoder.0.attention.output", "10.74"),
        ("bert.encoder.0.intermediate", "42.95"),
        ("bert.encoder.0.output", "42.95"),
        ("transform", "10.74"),
        ("decoder", "36.23"),
    ],
)
def test_each_linear_layer_of_bert_large_has_the_documented_macs(
    bert: Profile, name: str, documented: str
) -> None:
    assert f"{module(bert, name).forward.macs / GIGA:.2f}" == documented


def test_the_documented_whole_of_bert_large_lacks_the_products_inside_attention(
    bert: Profile,
) -> None:
    """3139.93 GMACs there: the linear layers, and one for each element that a softmax writes.

    Queries by keys and scores by values are missing from it; ours counts them, and no
    multiply-accumulate for a softmax.
    """
    scores = BATCH * HEADS * LENGTH * LENGTH
    products = LAYERS * 2 * scores * (WIDTH // HEADS)
    assert f"{(linear_macs(bert) + LAYERS * scores) / GIGA:.2f}" == "3139.93"
    assert bert.macs == linear_macs(bert) + products
