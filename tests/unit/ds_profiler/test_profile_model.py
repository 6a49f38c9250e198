"""A profile is exact for whole models, however they are wrapped, and leaves nothing behind."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks
from torch.utils.checkpoint import checkpoint

from ds_profiler import (
    Cost,
    FlopsProfiler,
    Profile,
    UsageError,
    default_rules,
    get_model_profile,
    profile,
)


class Thirds(nn.Module):
    """Three linear layers, with one weight or with three, each on a third of the input."""

    def __init__(self, *, shared: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(100, 100, bias=False) for _ in range(3))
        if shared:
            for layer in self.layers[1:]:
                layer.weight = self.layers[0].weight

    def forward(self, x: Tensor) -> Tensor:
        parts = zip(self.layers, x.chunk(3, dim=-1), strict=True)
        return torch.cat([layer(part) for layer, part in parts], dim=-1)


class Blocks(nn.Module):
    """One activation object in two blocks, and a block that may be checkpointed."""

    def __init__(self, *, reentrant: bool | None = None) -> None:
        super().__init__()
        act = nn.ReLU()
        self.first = nn.Sequential(nn.Linear(8, 16), act, nn.Linear(16, 8))
        self.second = nn.Sequential(nn.Linear(8, 16), act, nn.Linear(16, 8))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.reentrant is None:
            return self.second(x)
        return checkpoint(self.second, x, use_reentrant=self.reentrant)  # type: ignore[no-any-return]


def snapshot() -> list[int]:
    """The identity of everything a profiler might patch, and all global hooks."""
    owners: list[Any] = [torch, torch.nn.functional, Tensor, nn.Module, torch._C._nn]
    found = [id(vars(owner)[name]) for owner in owners for name in sorted(vars(owner))]
    tables = ["_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks"]
    found += [len(getattr(module_hooks, table)) for table in tables]
    return [*found, torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()]


def attributes(model: nn.Module) -> dict[str, Any]:
    return {
        f"{name}.{key}": (id(value), len(value) if hasattr(value, "__len__") else 0)
        for name, module in model.named_modules()
        for key, value in vars(module).items()
    }


def test_shared_weights_are_computed_with_thrice_and_stored_once() -> None:
    shared = profile(Thirds(shared=True), torch.randn(1, 300))
    apart = profile(Thirds(shared=False), torch.randn(1, 300))
    assert shared.flops == apart.flops == 60_000
    assert (shared.params, apart.params) == (10_000, 30_000)


def test_a_module_used_twice_is_listed_once_with_all_its_work() -> None:
    model = Blocks()
    result = profile(model, torch.randn(2, 8), backward=True)
    assert (result["first.1"].calls, result["first.1"].forward.flops) == (2, 64)
    assert result["second.1"].shared_with == "first.1"
    Blocks().load_state_dict(model.state_dict(), strict=True)
    assert model(torch.randn(2, 8)).shape == (2, 8)


@pytest.mark.parametrize(
    "wrap",
    [
        nn.Sequential,
        nn.DataParallel,
        torch.compile,
        torch.jit.script,
        lambda model: torch.jit.trace(model, torch.randn(2, 8)),
    ],
    ids=["sequential", "data_parallel", "compiled", "scripted", "traced"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_wrapped_models_cost_what_bare_ones_do(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
    bare = profile(model, torch.randn(2, 8), backward=True)
    wrapped = profile(wrap(model), torch.randn(2, 8), backward=True)
    assert (wrapped.root.forward, wrapped.params) == (bare.root.forward, bare.params)
    assert wrapped.root.backward.macs == bare.root.backward.macs


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_work_is_told_apart(reentrant: bool) -> None:
    plain = profile(Blocks(), torch.randn(2, 8), backward=True).root
    again = profile(Blocks(reentrant=reentrant), torch.randn(2, 8), backward=True)
    assert (again.root.forward, again.root.backward.macs) == (plain.forward, plain.backward.macs)
    assert again["second"].recompute.macs >= 256
    assert again["first"].recompute.macs == 0
    assert again.root.activation_bytes < plain.activation_bytes


def test_work_belongs_to_the_module_that_did_it_forward_and_backward() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.Linear(5, 6), nn.Tanh()))
    result = profile(model, torch.randn(3, 4, requires_grad=True), backward=True)
    assert [(m.name, m.forward.macs, m.backward.macs) for _, m in result.root.walk()] == [
        ("", 150, 300),
        ("0", 60, 120),
        ("1", 90, 180),
        ("1.0", 90, 180),
        ("1.1", 0, 0),
    ]


def test_frozen_weights_need_no_gradient_products() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).requires_grad_(False)
    model[1].weight.requires_grad_(True)
    result = profile(model, torch.randn(2, 8), backward=True)
    assert (result.macs, result.root.backward.macs) == (256, 128)


def test_keyword_arguments_and_nested_outputs_work() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, *, x: Tensor, scale: float) -> dict[str, Any]:
            return {"out": [self.layer(x) * scale], "note": "text"}

    result = profile(Named(), kwargs={"x": torch.randn(2, 4), "scale": 2.0}, backward=True)
    assert (result.macs, result.root.backward.macs) == (32, 32)


class Masked(nn.Module):
    def forward(self, x: Tensor, mask: Tensor, **more: Any) -> Tensor:
        assert set(more) <= {"scale", "training"}
        return x @ x + mask


def test_keywords_that_forward_names_are_passed_on() -> None:
    x, model = torch.ones(2, 2), Masked()
    result = profile(model, x, mask=x, kwargs={"scale": 2, "training": False}, training=True)
    assert result.macs == 8
    assert profile(model, x, call=lambda x, scale: model(x, x), scale=1).macs == 8


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"scale": 1}, r"scale: no option of profile \(kwargs, backward, .*\{'scale': \.\.\.\}"),
        ({"warmup": 5}, r"warmup: no option of profile .*warm_up"),
        ({"kwargs": {"mask": 1}}, "mask: given in kwargs too"),
    ],
)
def test_other_keywords_are_refused_with_the_way_to_pass_them(given: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        profile(Masked(), torch.ones(2, 2), mask=torch.ones(2, 2), **given)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (lambda x: x, "a torch.nn.Module is needed, got a function"),
        (nn.ReLU, r"got the class: make one, ReLU\("),
        (None, "got a NoneType"),
    ],
)
@pytest.mark.parametrize("use", [profile, FlopsProfiler, get_model_profile])
def test_what_is_no_module_is_refused(use: Callable[..., Any], model: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        use(model)


def test_operators_without_a_rule_are_listed_with_their_calls() -> None:
    with torch.library._scoped_library("ds_profiler_test", "DEF") as library:
        library.define("mystery(Tensor x) -> Tensor")
        library.impl("mystery", lambda x: x.clone(), "CompositeExplicitAutograd")
        mystery = torch.ops.ds_profiler_test.mystery

        class Model(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                return mystery(mystery(x))  # type: ignore[no-any-return]

        unknown = profile(Model(), torch.randn(3), warm_up=0)
        assert unknown.uncounted == {"ds_profiler_test::mystery": 2}
        rules = default_rules().with_rule(mystery, lambda args, kwargs, out: Cost(macs=7))
        known = profile(Model(), torch.randn(3), rules=rules, warm_up=0)
        assert (known.uncounted, known.macs) == ({}, 14)


def test_fake_tensors_count_the_same_and_compute_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    real = profile(model, torch.randn(2, 3, 8, 8), backward=True)
    fake = profile(model, torch.randn(2, 3, 8, 8), backward=True, compute=False)
    assert (fake.root.forward, fake.root.backward) == (real.root.forward, real.root.backward)
    assert (fake.device, fake.forward_seconds) == ("fake", 0.0)
    assert fake.root.activation_bytes == real.root.activation_bytes


def test_the_meta_device_needs_no_memory() -> None:
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(20_000, 20_000) for _ in range(20)))
        result = profile(model, torch.randn(1, 20_000), backward=True)
    assert result.macs == 20 * 400_000_000
    assert result.root.backward.macs == 39 * 400_000_000
    assert result.root.param_bytes > 3e10


def test_activations_are_the_tensors_kept_for_the_backward_pass() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    result = profile(model, torch.randn(2, 8))
    # the input, and the output of the activation, which the next layer shares
    assert (result["0"].activation_bytes, result.root.activation_bytes) == (64, 64 + 128)


@pytest.mark.parametrize("training", [True, False])
def test_nothing_of_the_model_changes(training: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()).train(training)
    model[0].weight.grad = grad = torch.ones(4, 4)
    before, state, rng = attributes(model), snapshot(), torch.get_rng_state()
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    profile(model, torch.randn(3, 4), backward=True, training=True)
    assert (attributes(model), snapshot()) == (before, state)
    assert model[0].weight.grad is grad
    assert torch.equal(grad, torch.ones(4, 4))
    assert model[0].bias.grad is None
    assert all(torch.equal(value, tensors[name]) for name, value in model.state_dict().items())
    assert not model[0].weight._backward_hooks
    assert not model[0].weight._post_accumulate_grad_hooks
    del rng


class Raises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError(f"no: {self.layer(x).shape}")


def test_a_forward_that_raises_leaves_nothing_behind() -> None:
    model, before = Raises(), snapshot()
    with pytest.raises(RuntimeError, match="no"):
        profile(model, torch.randn(2, 4))
    assert snapshot() == before
    profiler = FlopsProfiler(model)
    profiler.start_profile()
    with pytest.raises(RuntimeError, match="no"):
        model(torch.randn(2, 4))
    assert snapshot() == before
    with pytest.raises(UsageError, match="start_profile"):
        profiler.get_total_flops()


def test_a_model_called_while_an_exception_is_handled_is_counted() -> None:
    profiler = FlopsProfiler(nn.Linear(4, 4))
    profiler.start_profile()
    try:
        raise ValueError
    except ValueError:
        profiler.model(torch.randn(2, 4))
    profiler.stop_profile()
    assert profiler.get_total_macs() == 32


def test_counts_are_equal_each_time() -> None:
    model, profiler, counts = nn.Linear(4, 4), None, []
    for _ in range(3):
        profiler = FlopsProfiler(model)
        profiler.start_profile()
        model(torch.randn(2, 4))
        profiler.stop_profile()
        counts.append(profiler.get_total_flops())
        profiler.end_profile()
    assert counts == [64, 64, 64]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_profilers_coexist_and_stop_in_any_order(order: tuple[int, int]) -> None:
    before = snapshot()
    models = [nn.Linear(4, 4), nn.Linear(8, 8)]
    profilers = [FlopsProfiler(model) for model in models]
    for profiler in profilers:
        profiler.start_profile()
    models[0](torch.randn(2, 4))
    models[1](torch.randn(2, 8))
    for which in order:
        profilers[which].stop_profile()
    assert snapshot() == before
    assert [profiler.get_total_macs() for profiler in profilers] == [32, 128]


def test_nested_profiles_see_the_same_work() -> None:
    model = nn.Linear(4, 4)
    with FlopsProfiler(model) as outer:
        inner = profile(model, torch.randn(2, 4), warm_up=0)
    assert inner.macs == 32
    assert outer.get_total_macs() == 64  # counted, then timed


def test_a_profile_survives_json() -> None:
    result = profile(Blocks(), torch.randn(2, 8), backward=True, peak_flops=1e12)
    assert Profile.from_dict(result.to_dict()) == result


def test_backward_without_anything_to_differentiate_is_explained() -> None:
    with torch.no_grad(), pytest.raises(UsageError, match="requires a gradient"):
        profile(nn.Linear(2, 2), torch.randn(1, 2), backward=True)


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count = self.count + 1
        return x + self.count


@pytest.mark.parametrize("compute", [True, False])
def test_a_buffer_that_forward_replaces_is_put_back(compute: bool) -> None:
    model = Counts()
    count = model.count
    profile(model, torch.ones(2), compute=compute)
    assert model.count is count
    assert count.tolist() == [0.0]


class Recursive(nn.Module):
    def forward(self, x: Tensor, depth: int = 3) -> Tensor:
        time.sleep(0.01)
        return self(x, depth - 1) if depth else x + 1


def test_a_module_that_calls_itself_is_timed_once() -> None:
    result = profile(Recursive(), torch.ones(2), warm_up=0)
    assert result.root.forward_seconds <= result.forward_seconds


class Yields(nn.Module):
    def forward(self, x: Tensor) -> Iterator[Tensor]:
        yield x + 1


def test_a_generator_is_refused_since_nothing_has_run() -> None:
    with pytest.raises(UsageError, match="returned a generator"):
        profile(Yields(), torch.ones(2))


@pytest.mark.parametrize(("loss", "told"), [(lambda y: 1.0, "float"), (lambda y: y, r"\(2, 4\)")])
def test_a_loss_that_is_no_scalar_is_told(loss: Callable[..., Any], told: str) -> None:
    with pytest.raises(UsageError, match=f"loss gave {told}: it must give a tensor of one"):
        profile(nn.Linear(4, 4), torch.ones(2, 4), backward=True, loss=loss)


class Grows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "layer"):
            self.layer = nn.Linear(4, 4, bias=False)
        return self.layer(x)  # type: ignore[no-any-return]


def test_a_layer_that_forward_makes_counts_for_its_maker() -> None:
    assert profile(Grows(), torch.ones(2, 4)).macs == 32


@pytest.mark.parametrize("compute", [True, False])
def test_a_model_without_shapes_is_refused_by_name(compute: bool) -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(UsageError, match=r"0\.weight has no shape yet: run the model once"):
        profile(model, torch.ones(2, 4), compute=compute)


class InThread(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(self.layer, x).result()  # type: ignore[no-any-return]


def test_what_another_thread_runs_is_not_passed_off_as_free() -> None:
    result = profile(InThread(), torch.ones(2, 4))
    assert result.uncounted == {"forward in another thread": 1}


class TakesGradients(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.grad(lambda w: (x @ w).sum())(self.weight)  # type: ignore[no-any-return]


def test_where_activations_cannot_be_seen_the_rest_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = snapshot()
    root = profile(TakesGradients(), torch.ones(2, 4)).root
    assert (root.forward.macs, root.backward.macs, root.activation_bytes) == (32, 32, 0)
    assert "activations are not measured" in caplog.text
    assert snapshot() == before
