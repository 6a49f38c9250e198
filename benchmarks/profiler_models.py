"""The models that profilers are measured on, with their multiply-accumulates worked out by hand.

Each case says what its products cost in the forward pass and in the backward pass, from its
sizes alone. Inputs need no gradient, so the first layer's input gradient is not computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    """A module, how to call it, and what it costs.

    Attributes:
        build: makes the module; true if its own calls of functions are to pass keywords.
        inputs: makes the arguments, in order, by name.
        forward: exact multiply-accumulates.
        backward: exact multiply-accumulates of the backward pass, None for inference.
        training: mode of the module.
    """

    name: str
    build: Callable[[bool], nn.Module]
    inputs: Callable[[], dict[str, Tensor]]
    forward: int
    backward: int | None
    training: bool = True


class AlexNet(nn.Module):
    """61.1 M parameters; the layers of the one-tower version."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(True), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(True), nn.MaxPool2d(3, 2)),
            *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(True)),
            *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(True)),
            *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(True), nn.MaxPool2d(3, 2)),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((6, 6))
        self.classifier = nn.Sequential(
            *(nn.Dropout(), nn.Linear(9216, 4096), nn.ReLU(True)),
            *(nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(True), nn.Linear(4096, 1000)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 with a shortcut."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(width_in, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(True)),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            *(nn.BatchNorm2d(width), nn.ReLU(True)),
            *(nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(width_in, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet50(nn.Module):
    """25.6 M parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(True)
        )
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks, width_in = [], 64
        for stage, count in enumerate((3, 4, 6, 3)):
            for number in range(count):
                width = 64 << stage
                blocks.append(Bottleneck(width_in, width, 2 if stage and not number else 1))
                width_in = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(2048, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.pool(self.stem(x))).mean((2, 3)))


class Block(nn.Module):
    """A transformer layer on fused attention."""

    def __init__(self, width: int, heads: int, keyword: bool, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads, self.keyword, self.causal = heads, keyword, causal

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        if self.keyword:
            mixed = F.scaled_dot_product_attention(query=q, key=k, value=v, is_causal=self.causal)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, None, 0.0, self.causal)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """BERT-base, GPT-2 or ViT-B/16, by what it reads and what it ends with."""

    def __init__(self, kind: str, keyword: bool, layers: int = 12, width: int = 768) -> None:
        super().__init__()
        self.kind = kind
        tokens = {"bert": 30522, "gpt2": 50257, "vit": 1}[kind]
        self.embed = nn.Embedding(tokens, width)
        self.position = nn.Embedding(1024, width)
        if kind == "vit":
            self.patches = nn.Conv2d(3, width, 16, 16)
        self.blocks = nn.Sequential(
            *(Block(width, width // 64, keyword, kind == "gpt2") for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        if kind == "gpt2":
            self.head = nn.Linear(width, tokens, bias=False)
            self.head.weight = self.embed.weight
        else:
            self.head = nn.Linear(width, width if kind == "bert" else 1000)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "vit":
            seen = self.patches(x).flatten(2).transpose(1, 2)
            first = self.embed(torch.zeros(len(x), 1, dtype=torch.long, device=x.device))
            hidden = torch.cat([first, seen], dim=1)
        else:
            hidden = self.embed(x)
        hidden = hidden + self.position(torch.arange(hidden.shape[1], device=x.device))
        hidden = self.norm(self.blocks(hidden))
        return self.head(hidden if self.kind == "gpt2" else hidden[:, 0])


class Attention(nn.Module):
    """`scaled_dot_product_attention` of what it is given."""

    def __init__(self, keyword: bool, **options: bool) -> None:
        super().__init__()
        self.keyword, self.options = keyword, options

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.keyword:
            return F.scaled_dot_product_attention(query=query, key=key, value=value, **self.options)
        return F.scaled_dot_product_attention(query, key, value, **self.options)


class Product(nn.Module):
    """`a @ b`, or `torch.matmul(input=a, other=b)`."""

    def __init__(self, keyword: bool) -> None:
        super().__init__()
        self.keyword = keyword

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.matmul(input=a, other=b) if self.keyword else a @ b


class Einsum(nn.Module):
    """A batched product over two indices."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.einsum("bhqd,bhkd->bhqk", a, b)


class Deconvolution(nn.Module):
    """Grouped, transposed and dilated convolutions, as modules and as functions."""

    def __init__(self, keyword: bool) -> None:
        super().__init__()
        self.keyword = keyword
        self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1, groups=4)
        self.up = nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1, groups=2)
        self.kernel = nn.Parameter(torch.randn(8, 4, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(F.relu(self.down(x)))
        if self.keyword:
            return F.conv_transpose2d(input=x, weight=self.kernel, groups=4, dilation=2)
        return F.conv_transpose2d(x, self.kernel, None, 1, 0, 0, 4, 2)


class SelfAttention(nn.Module):
    """`nn.MultiheadAttention` of a sequence with itself."""

    def __init__(self, keyword: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 4, batch_first=True)
        self.keyword = keyword

    def forward(self, x: Tensor) -> Tensor:
        if self.keyword:
            return self.attention(query=x, key=x, value=x, need_weights=False)[0]
        return self.attention(x, x, x, None, False)[0]


class Recurrent(nn.Module):
    """Two layers of LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 64, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


@dataclass(frozen=True)
class _Net:
    """Products of a network: plain ones, those of its first layer, and fused attention's."""

    plain: int
    first: int = 0
    attention: int = 0

    @property
    def forward(self) -> int:
        return self.plain + self.attention

    @property
    def backward(self) -> int:
        """Two gradients a product, but none for the inputs; fused attention recomputes scores."""
        return 2 * self.plain - self.first + 5 * self.attention // 2


def _alexnet() -> _Net:
    first = 64 * 55 * 55 * 3 * 121
    convolutions = 192 * 27**2 * 64 * 25 + 169 * 9 * (384 * 192 + 256 * 384 + 256 * 256)
    return _Net(first + convolutions + 9216 * 4096 + 4096 * 4096 + 4096 * 1000, first)


def _resnet50() -> _Net:
    first = 64 * 112 * 112 * 3 * 49
    total, width_in, side = first + 2048 * 1000, 64, 56
    for stage, count in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for number in range(count):
            total += side * side * width_in * width
            if stage and not number:
                side //= 2
            if not number:
                total += side * side * width_in * 4 * width
            total += side * side * (9 * width * width + 4 * width * width)
            width_in = 4 * width
    return _Net(total, first)


def _layers(tokens: int, width: int = 768, layers: int = 12) -> tuple[int, int]:
    return layers * 12 * width * width * tokens, layers * 2 * tokens * tokens * width


def _transformer(kind: str) -> _Net:
    tokens = {"bert": 128, "gpt2": 64, "vit": 197}[kind]
    plain, attention = _layers(tokens)
    first = 196 * 768 * 768 if kind == "vit" else 0
    head = {"bert": 768 * 768, "gpt2": tokens * 768 * 50257, "vit": 768 * 1000}[kind]
    return _Net(plain + first + head, first, attention)


def _image() -> dict[str, Tensor]:
    return {"x": torch.randn(1, 3, 224, 224)}


def _wants(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def cases() -> list[Case]:
    """All of them."""
    alexnet, resnet = _alexnet(), _resnet50()
    nets = {kind: _transformer(kind) for kind in ("bert", "gpt2", "vit")}
    down, up, last = 16 * 256 * 2 * 9, 16 * 256 * 4 * 16, 8 * 1024 * 4 * 9
    lstm = 2 * 20 * (256 * (32 + 64) + 256 * (64 + 64))
    attend, projected = 2 * 2 * 16 * 16 * 64, 2 * 16 * 4 * 64 * 64
    layer = projected + 2 * 16 * 2 * 64 * 128
    sequence = {"x": (2, 16, 64)}
    tokens = {"bert": (30522, 128), "gpt2": (50257, 64)}

    def text(kind: str) -> Callable[[], dict[str, Tensor]]:
        return lambda: {"x": torch.randint(tokens[kind][0], (1, tokens[kind][1]))}

    def hidden() -> dict[str, Tensor]:
        return {"x": torch.randn(*sequence["x"])}

    def qkv(kv_heads: int) -> Callable[[], dict[str, Tensor]]:
        return lambda: {
            "query": _wants(1, 12, 64, 64),
            "key": _wants(1, kv_heads, 64, 64),
            "value": _wants(1, kv_heads, 64, 64),
        }

    def encoder(keyword: bool) -> nn.Module:
        return nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)

    fused = 2 * 12 * 64 * 64 * 64
    return [
        Case("AlexNet", lambda k: AlexNet(), _image, alexnet.forward, alexnet.backward),
        Case("ResNet-50", lambda k: ResNet50(), _image, resnet.forward, resnet.backward),
        *(
            Case(
                name,
                lambda k, kind=kind: Transformer(kind, k),
                _image if kind == "vit" else text(kind),
                nets[kind].forward,
                nets[kind].backward,
            )
            for name, kind in (("BERT-base", "bert"), ("GPT-2", "gpt2"), ("ViT-B/16", "vit"))
        ),
        Case(
            "grouped transposed convolutions",
            Deconvolution,
            lambda: {"x": torch.randn(1, 8, 32, 32)},
            down + up + last,
            2 * (down + up + last) - down,
        ),
        Case("LSTM", lambda k: Recurrent(), lambda: {"x": torch.randn(2, 20, 32)}, lstm, 2 * lstm),
        Case("attention (1, 12, 64, 64)", Attention, qkv(12), fused, 5 * fused // 2),
        Case(
            "attention, causal, grouped queries",
            lambda k: Attention(k, is_causal=True, enable_gqa=True),
            qkv(3),
            fused,
            5 * fused // 2,
        ),
        Case(
            "MultiheadAttention, training",
            SelfAttention,
            hidden,
            projected + attend,
            2 * projected - 3 * projected // 4 + 5 * attend // 2,
        ),
        Case(
            "MultiheadAttention, fast path", SelfAttention, hidden, projected + attend, None, False
        ),
        Case(
            "TransformerEncoderLayer, training",
            encoder,
            lambda: {"src": torch.randn(2, 16, 64)},
            layer + attend,
            2 * layer - 3 * projected // 4 + 5 * attend // 2,
        ),
        Case(
            "TransformerEncoderLayer, fast path",
            encoder,
            lambda: {"src": torch.randn(2, 16, 64)},
            layer + attend,
            None,
            False,
        ),
        Case(
            "a @ b",
            Product,
            lambda: {"a": _wants(4, 32, 48), "b": _wants(48, 16)},
            4 * 32 * 48 * 16,
            2 * 4 * 32 * 48 * 16,
        ),
        Case(
            "einsum",
            lambda k: Einsum(),
            lambda: {"a": _wants(2, 3, 8, 16), "b": _wants(2, 3, 4, 16)},
            2 * 3 * 8 * 4 * 16,
            2 * 2 * 3 * 8 * 4 * 16,
        ),
    ]
