"""Each operator costs what pencil and paper say, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ds_profiler import Profile, profile


class Call(nn.Module):
    """A module that calls a function of its inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


def of(function: Callable[..., Any], *shapes: tuple[int, ...], backward: bool = False) -> Profile:
    inputs = [torch.randn(shape, requires_grad=backward) for shape in shapes]
    return profile(Call(function), *inputs, backward=backward, warm_up=0)


@pytest.mark.parametrize(
    ("function", "shapes", "macs"),
    [
        (torch.mm, [(3, 5), (5, 7)], 105),
        (lambda a, b: a @ b, [(3, 5), (5, 7)], 105),
        (torch.matmul, [(2, 1, 3, 5), (4, 5, 7)], 840),
        (lambda a, b: torch.matmul(a, other=b), [(3, 5), (5,)], 15),
        (torch.bmm, [(2, 3, 5), (2, 5, 7)], 210),
        (torch.addmm, [(3, 7), (3, 5), (5, 7)], 105),
        (lambda x, a, b: torch.addmm(input=x, mat1=a, mat2=b), [(7,), (3, 5), (5, 7)], 105),
        (torch.dot, [(11,), (11,)], 11),
        (torch.mv, [(3, 5), (5,)], 15),
        (torch.addmv, [(3,), (3, 5), (5,)], 15),
        (lambda a, b: torch.einsum("bij,bjk->bik", a, b), [(2, 3, 5), (2, 5, 7)], 210),
        (lambda a, b: torch.einsum("bhqd,bhkd->bhqk", a, b), [(2, 3, 5, 7), (2, 3, 4, 7)], 840),
        (F.linear, [(2, 3, 5), (7, 5), (7,)], 210),
        (lambda x, w: F.linear(input=x, weight=w), [(3, 5), (7, 5)], 105),
        (F.bilinear, [(2, 3), (2, 4), (5, 3, 4)], 120),
        (F.conv1d, [(1, 4, 9), (6, 4, 3)], 6 * 7 * 4 * 3),
        (F.conv2d, [(2, 4, 9, 9), (6, 4, 3, 3)], 2 * 6 * 49 * 36),
        (lambda x, w: F.conv2d(x, w, groups=2), [(2, 4, 9, 9), (6, 2, 3, 3)], 2 * 6 * 49 * 18),
        (lambda x, w: F.conv2d(x, w, dilation=3), [(1, 4, 9, 9), (6, 4, 3, 3)], 6 * 9 * 36),
        (lambda x, w: F.conv2d(x, w, stride=2, padding=1), [(1, 4, 9, 9), (6, 4, 3, 3)], 5400),
        (F.conv3d, [(1, 2, 5, 5, 5), (3, 2, 3, 3, 3)], 3 * 27 * 54),
        (F.conv_transpose2d, [(1, 4, 5, 5), (4, 6, 3, 3)], 4 * 25 * 54),
        (lambda x, w: F.conv_transpose2d(x, w, groups=2), [(1, 4, 5, 5), (4, 3, 3, 3)], 2700),
        (F.scaled_dot_product_attention, [(1, 12, 64, 64)] * 3, 6_291_456),
        (
            lambda q, k, v: F.scaled_dot_product_attention(query=q, key=k, value=v, is_causal=True),
            [(1, 12, 64, 64)] * 3,
            6_291_456,
        ),
        (
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
            [(1, 12, 64, 64), (1, 3, 64, 64), (1, 3, 64, 64)],
            6_291_456,
        ),
        (
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.zeros(5, 7)),
            [(2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 6)],
            2 * 3 * 5 * 7 * 14,
        ),
    ],
)
def test_products_cost_their_shapes(
    function: Callable[..., Tensor], shapes: list[tuple[int, ...]], macs: int
) -> None:
    result = of(function, *shapes)
    assert (result.macs, result.uncounted) == (macs, {})


@pytest.mark.parametrize(
    ("function", "shapes", "flops"),
    [
        (F.relu, [(10, 10)], 100),
        (lambda x: F.relu(x + 0, inplace=True), [(10, 10)], 200),
        (F.gelu, [(10, 10)], 100),
        (F.silu, [(10, 10)], 100),
        (torch.tanh, [(10, 10)], 100),
        (lambda x: F.softmax(x, -1), [(10, 10)], 100),
        (lambda x: F.log_softmax(x, dim=-1), [(10, 10)], 100),
        (lambda x: F.layer_norm(x, (10,)), [(10, 10)], 400),
        (lambda x, w, b: F.layer_norm(x, (10,), w, b), [(10, 10), (10,), (10,)], 500),
        (lambda x, w: F.group_norm(x, 2, w, w), [(2, 4, 5), (4,)], 200),
        (lambda x, w: F.batch_norm(x, w, w, w, w), [(10, 10), (10,)], 200),
        (lambda x, w: F.batch_norm(x, None, None, w, w, training=True), [(9, 7), (7,)], 315),
        (lambda x: F.instance_norm(x), [(2, 4, 5)], 160),
        (lambda x: F.max_pool2d(x, 3, 2), [(1, 2, 9, 9)], 162),
        (lambda x: F.avg_pool2d(x, 3, 2), [(1, 2, 9, 9)], 162),
        (lambda x: F.adaptive_avg_pool2d(x, 1), [(1, 2, 9, 9)], 162),
        (lambda x: F.interpolate(x, scale_factor=2), [(1, 2, 9, 9)], 648),
        (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), [(1, 2, 9, 9)], 648),
        (lambda a, b: a * b, [(4, 5), (4, 5)], 20),
        (lambda a: (a > 0).logical_and(a < 1), [(4, 5)], 0),
        (lambda a: a.sum(dim=1), [(4, 5)], 20),
        (lambda a: a.flatten().view(5, 4).t().contiguous().repeat(2, 2)[1:], [(4, 5)], 0),
        (lambda t: F.embedding(torch.tensor([1, 2]), t), [(4, 5)], 0),
        (lambda x: torch.fft.fft(x.to(torch.complex64)), [(3, 8)], 5 * 24 * 3),
        (torch.fft.rfft, [(3, 8)], 60 * 3),
        (lambda x: torch.fft.ifft2(x.to(torch.complex64)), [(2, 8, 4)], 5 * 64 * (3 + 2)),
    ],
)
def test_other_operators_follow_the_conventions(
    function: Callable[..., Tensor], shapes: list[tuple[int, ...]], flops: int
) -> None:
    result = of(function, *shapes)
    assert (result.macs, result.flops, result.uncounted) == (0, flops, {})


@pytest.mark.parametrize(
    ("function", "shapes", "times"),
    [
        (torch.matmul, [(3, 5), (5, 7)], 2),
        (F.linear, [(2, 3, 5), (7, 5), (7,)], 2),
        (F.conv2d, [(2, 4, 9, 9), (6, 4, 3, 3), (6,)], 2),
        (lambda x, w: F.conv_transpose2d(x, w, groups=2), [(1, 4, 5, 5), (4, 3, 3, 3)], 2),
        (F.bilinear, [(2, 3), (2, 4), (5, 3, 4)], 3),
        (F.scaled_dot_product_attention, [(1, 2, 16, 8)] * 3, 2.5),
        (lambda a, b: torch.einsum("bij,bjk->bik", a, b), [(2, 3, 5), (2, 5, 7)], 2),
    ],
)
def test_backward_costs_what_it_really_does(
    function: Callable[..., Tensor], shapes: list[tuple[int, ...]], times: float
) -> None:
    result = of(function, *shapes, backward=True)
    assert result.root.backward.macs == times * result.macs


def test_an_input_without_gradient_saves_half_of_the_backward_pass() -> None:
    result = profile(nn.Linear(4, 5), torch.randn(3, 4), backward=True)
    assert result.root.backward.macs == result.macs == 60


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_costs_the_same_fused_or_not(backend: SDPBackend, causal: bool) -> None:
    def attend(query: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(query, query, query, is_causal=causal)

    assert of(attend, (1, 12, 64, 64)).flops == 12_582_912


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize(
    ("module", "shape", "macs"),
    [
        (nn.Linear(4, 5), (3, 4), 60),
        (nn.LSTM(3, 4, 2), (5, 2, 3), 2400),
        (nn.LSTM(3, 4, bidirectional=True), (5, 2, 3), 10 * 2 * (48 + 64)),
        (nn.GRU(3, 4, 2), (5, 2, 3), 1800),
        (nn.RNN(3, 4), (5, 2, 3), 280),
        (nn.LSTMCell(3, 4), (2, 3), 224),
        (nn.MultiheadAttention(8, 2, batch_first=True), (2, 3, 8), 6 * 4 * 64 + 2 * 2 * 9 * 8),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 3, 8), 1824 + 6 * 2 * 128),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("training", [False, True])
def test_modules_cost_the_same_in_every_mode(
    mode: Callable[[], Any], module: nn.Module, shape: tuple[int, ...], macs: int, training: bool
) -> None:
    attention = isinstance(module, nn.MultiheadAttention)
    x = torch.randn(shape)
    with mode():
        args = (x, x, x) if attention else (x,)
        kwargs = {"need_weights": False} if attention else {}
        result = profile(module, *args, kwargs=kwargs, training=training, warm_up=0)
    assert (result.macs, result.uncounted) == (macs, {})


def test_the_fast_path_is_taken_while_it_is_counted() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    with torch.no_grad():
        result = profile(layer, torch.randn(2, 3, 8), warm_up=0)
    assert [row.name for row in result.root.operators] == ["aten::_transformer_encoder_layer_fwd"]


def test_padding_is_not_counted_by_the_nested_fast_path() -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
    padding = torch.tensor([[False, False, True], [False, False, False]])
    with torch.no_grad(), pytest.warns(UserWarning, match="nested tensors"):
        result = profile(
            encoder.eval(), torch.randn(2, 3, 8), kwargs={"src_key_padding_mask": padding}
        )
    assert result.macs == 5 * (4 * 64 + 2 * 128) + 2 * (4 + 9) * 8


def test_a_lstm_backward_pass_costs_two_forward_passes() -> None:
    result = profile(nn.LSTM(3, 4, 2), torch.randn(5, 2, 3), backward=True)
    assert result.root.backward.macs == 2 * result.macs == 4800


def test_real_transform_costs_half_of_a_complex_one() -> None:
    complex_one = of(lambda x: torch.fft.fft(x.to(torch.complex64)), (7, 16)).flops
    assert of(torch.fft.rfft, (7, 16)).flops * 2 == complex_one == round(5 * 7 * 16 * math.log2(16))
