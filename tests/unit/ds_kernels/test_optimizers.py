"""The CPU optimizers follow torch's (or the paper's formula) at every instruction level."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ds_kernels import (
    CPUSGD,
    CPUAdagrad,
    CPUAdam,
    CPUAdamW,
    CPULamb,
    CPULion,
    FusedAdam,
    FusedLamb,
    FusedLion,
)

from .oracles import CASES, give_grads, parameters, spread, worst

SIZES = (0, 1, 7, 8, 15, 17, 33, 1025)
EPS = torch.finfo(torch.float32).eps

pytestmark = pytest.mark.native


def some_values() -> list[torch.Tensor]:
    """All sizes, a matrix, a transposed, a channels-last and a truly strided tensor."""
    flat = [torch.randn(size) for size in SIZES]
    image = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    return [*flat, torch.randn(9, 5), torch.randn(5, 9).t(), image, torch.randn(6, 8)[:, ::2]]


@pytest.mark.parametrize("name", CASES)
def test_100_steps_are_as_close_to_float64_as_torch_is(name: str, level: str) -> None:
    values = some_values()
    ours, theirs = parameters(values, torch.float32), parameters(values, torch.float32)
    exact = parameters(values, torch.float64)
    optimizer, reference = CASES[name].pair(ours, theirs)
    _, precise = CASES[name].pair(exact, exact)
    for _ in range(100):
        give_grads(ours, theirs, exact)
        optimizer.step()
        reference.step()
        precise.step()
    assert worst(ours, exact) <= 10 * EPS
    assert spread(ours, exact) <= 1.05 * spread(theirs, exact)


@pytest.mark.parametrize("name", ["adamw", "adam_l2", "adagrad", "lion"])
def test_every_length_of_tail_is_followed(name: str, level: str) -> None:
    """Case 5.2: sizes 1 to 33."""
    values = [torch.randn(size) for size in range(1, 34)]
    ours, exact = parameters(values, torch.float32), parameters(values, torch.float64)
    optimizer, precise = CASES[name].pair(ours, exact)
    for _ in range(10):
        give_grads(ours, exact)
        optimizer.step()
        precise.step()
    assert worst(ours, exact) <= 1e-6


@pytest.mark.parametrize(
    ("ours", "theirs", "shared"),
    [
        (CPUAdam, torch.optim.Adam, 6),
        (CPUAdamW, torch.optim.AdamW, 6),
        (CPUAdagrad, torch.optim.Adagrad, 6),
        (CPUSGD, torch.optim.SGD, 6),
        (FusedAdam, CPUAdam, 10),
        (FusedLamb, CPULamb, 11),
        (FusedLion, CPULion, 6),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_arguments_and_defaults_are_those_of_the_twin(
    ours: type, theirs: type, shared: int
) -> None:
    """Case 5.2: torch's class, or the CPU's for the GPU's; `shared` arguments in the same order."""
    given, wanted = (
        [(p.name, p.default) for p in inspect.signature(kind).parameters.values()]
        for kind in (ours, theirs)
    )
    assert given[:shared] == wanted[:shared]
    both = dict(given).keys() & dict(wanted).keys()
    assert {name: dict(given)[name] for name in both} == {n: dict(wanted)[n] for n in both}


@pytest.mark.parametrize("name", ["adamw", "adagrad_decay", "sgd_nesterov", "lion", "lamb"])
def test_a_million_elements_agree_with_float64(name: str) -> None:
    values = [torch.randn(1_000_003)]
    ours, theirs = parameters(values, torch.float32), parameters(values, torch.float32)
    exact = parameters(values, torch.float64)
    optimizer, reference = CASES[name].pair(ours, theirs)
    _, precise = CASES[name].pair(exact, exact)
    for _ in range(10):
        give_grads(ours, theirs, exact)
        optimizer.step()
        reference.step()
        precise.step()
    assert worst(ours, exact) <= 10 * EPS
    assert spread(ours, exact) <= 1.05 * spread(theirs, exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["adamw", "adagrad", "sgd_nesterov", "lion", "lamb"])
def test_one_step_in_low_precision_rounds_the_exact_result(
    name: str, dtype: torch.dtype, level: str
) -> None:
    values = [value.to(dtype) for value in some_values()]
    ours, exact = parameters(values, dtype), parameters(values, torch.float64)
    optimizer, precise = CASES[name].pair(ours, exact)
    give_grads(ours, exact)
    for low, high in zip(ours, exact, strict=True):
        high.grad = low.grad.double()
    optimizer.step()
    precise.step()
    assert worst(ours, exact) <= torch.finfo(dtype).eps


@pytest.mark.parametrize("name", CASES)
def test_groups_learning_rates_and_reloading_are_followed(name: str, level: str) -> None:
    """Case 5.2: two groups, the rate changed midway, state saved and reloaded at step 5."""
    values = [torch.randn(17), torch.randn(4, 9)]
    ours, exact = parameters(values, torch.float32), parameters(values, torch.float64)
    case = CASES[name]

    def groups(params: list[torch.nn.Parameter]) -> list[dict]:
        return [{"params": params[:1]}, {"params": params[1:], "lr": 5e-3}]

    optimizer, precise = case.pair(groups(ours), groups(exact))
    for step in range(50):
        if step == 5:
            state = optimizer.state_dict()
            optimizer, _ = case.pair(groups(ours), groups(exact))
            optimizer.load_state_dict(state)
        if step == 25:
            for group in optimizer.param_groups + precise.param_groups:
                group["lr"] *= 0.5
        give_grads(ours, exact)
        optimizer.step()
        precise.step()
    assert worst(ours, exact) <= 1e-6


@pytest.mark.parametrize("case", ["adamw", "adam_l2", "adagrad_decay", "sgd_nesterov"])
@pytest.mark.parametrize("ours_first", [True, False])
def test_state_dicts_interchange_with_torch(case: str, ours_first: bool) -> None:
    values = [torch.randn(17), torch.randn(4, 9)]
    params, control = parameters(values, torch.float32), parameters(values, torch.float32)
    ours, theirs = CASES[case].pair(params, params)
    first, second = (ours, theirs) if ours_first else (theirs, ours)
    _, reference = CASES[case].pair(control, control)
    for step in range(10):
        give_grads(params, control)
        if step == 5:
            second.load_state_dict(first.state_dict())
        (first if step < 5 else second).step()
        reference.step()
    assert worst(params, control) <= 1e-6


def test_lamb_reports_its_trust_ratios() -> None:
    params = parameters([torch.full((10,), 3.0), torch.zeros(10)], torch.float32)
    optimizer, _ = CASES["lamb_no_decay"].pair(params, params)
    for param in params:
        param.grad = torch.ones(10)
    optimizer.step()
    assert optimizer.get_lamb_coeffs() == pytest.approx([3.0, 1.0], rel=1e-5)


def test_a_backward_pass_that_needs_values_from_before_the_step_is_refused() -> None:
    weight, copy = torch.nn.Parameter(torch.ones(3)), torch.ones(3)
    loss = (weight * weight * copy).sum()
    loss.backward(retain_graph=True)
    CPUSGD([weight]).step(out={weight: copy})
    assert copy._version == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_lazily_negated_gradients_count_with_their_sign() -> None:
    weight = torch.nn.Parameter(torch.zeros(3))
    weight.grad = torch._neg_view(torch.ones(3))
    CPUSGD([weight], lr=1.0).step()
    assert torch.equal(weight, torch.ones(3))


def test_steps_are_counted_whatever_the_default_dtype_and_device() -> None:
    weight = torch.nn.Parameter(torch.ones(1))
    weight.grad = torch.ones(1)
    optimizer = CPUAdam([weight])
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            optimizer.step()
            optimizer.load_state_dict(optimizer.state_dict())
    finally:
        torch.set_default_dtype(torch.float32)
    count = optimizer.state[weight]["step"]
    assert (count.device.type, count.dtype) == ("cpu", torch.float32)


def test_step_hooks_and_profilers_find_every_step() -> None:
    """The optimizer leaves torch's wrapper out only while nothing listens."""
    optimizer = CPUAdam(parameters([torch.ones(3)], torch.float32))
    give_grads(optimizer.param_groups[0]["params"])
    heard: list[str] = []
    optimizer.step()
    before = optimizer.register_step_pre_hook(lambda *_: heard.append("before"))
    after = optimizer.register_step_post_hook(lambda *_: heard.append("after"))
    everywhere = register_optimizer_step_post_hook(lambda *_: heard.append("of all"))
    optimizer.step()
    for handle in (before, after, everywhere):
        handle.remove()
    optimizer.step()
    assert heard == ["before", "after", "of all"]
    with torch.profiler.profile() as profile:
        optimizer.step()
    assert "Optimizer.step#CPUAdam.step" in {event.key for event in profile.key_averages()}
