"""The multi-tensor calls for devices without Triton do what the one-tensor formulas do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ds_kernels import FusedAdam, FusedLamb, FusedLion, formulas, fused
from ds_kernels.formulas import ADAM, LAMB, LION, SGD, Rule
from ds_kernels.lanes import Lane
from ds_kernels.reference import many, update, update_many

GROUP = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
GROUP |= {"min_coeff": 0.01, "max_coeff": 10.0}
SIZES = (0, 1, 7, 0, 1025, 64)
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def lane(size: int, rule: Rule, param: torch.dtype, grad: torch.dtype, copy: bool) -> Lane:
    states = tuple(torch.rand(size) for _ in rule.state_names)
    out = torch.zeros(size, dtype=torch.bfloat16) if copy else None
    values = torch.randn(size).to(param), torch.randn(size).to(grad)
    return Lane(*values, states, out, f"tensor of {size}", rule.state_names)


def cloned(x: Lane) -> Lane:
    out = None if x.out is None else x.out.clone()
    return x._replace(param=x.param.clone(), states=tuple(map(torch.clone, x.states)), out=out)


def compare(rule: Rule, ours: list[Lane], decoupled: bool) -> None:
    theirs = [cloned(x) for x in ours]
    formula = rule.scalars({**GROUP, "decoupled_weight_decay": decoupled}, 3, 0.5)
    ratios = update_many(formula, ours)
    wanted = [update(formula, x) for x in theirs]
    assert [float(ratio) for ratio in ratios] == pytest.approx(wanted, rel=1e-5)
    for a, b in zip(ours, theirs, strict=True):
        for new, old in zip(tensors(a), tensors(b), strict=True):
            eps = 2 * torch.finfo(new.dtype).eps
            torch.testing.assert_close(new, old, rtol=max(eps, 1e-6), atol=1e-6)


def tensors(x: Lane) -> list[Tensor]:
    return [x.param, *x.states, *([] if x.out is None else [x.out])]


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("grad", FLOATS)
@pytest.mark.parametrize("param", FLOATS)
@pytest.mark.parametrize("rule", [ADAM, LION, LAMB], ids=lambda rule: rule.name)
def test_many_tensors_agree_with_one_at_a_time(rule: Rule, param, grad, copy: bool) -> None:
    for decoupled in (True, False):
        compare(rule, [lane(size, rule, param, grad, copy) for size in SIZES], decoupled)


@pytest.mark.parametrize("rule", [ADAM, LION, LAMB], ids=lambda rule: rule.name)
def test_mixed_dtypes_and_slabs_keep_results_in_order(rule: Rule, monkeypatch) -> None:
    monkeypatch.setattr(many, "SLAB", 70)
    kinds = [(p, g, c) for p in FLOATS for g in FLOATS for c in (False, True)]
    compare(rule, [lane(30 + i % 9, rule, *kind) for i, kind in enumerate(kinds * 3)], True)


@pytest.mark.parametrize("optimizer", [FusedAdam, FusedLion, FusedLamb])
def test_the_number_of_calls_does_not_grow_with_the_parameters(optimizer, monkeypatch) -> None:
    """On a device without Triton; the meta device stands for one."""

    def calls(count: int) -> int:
        params = [torch.nn.Parameter(torch.ones(3, 2, device="meta")) for _ in range(count)]
        for param in params:
            param.grad = torch.ones_like(param)
        stepper = optimizer(params, weight_decay=0.1)
        stepper.step()  # makes the moments
        seen: list[str] = []

        def counted(name: str):
            real = getattr(torch, name)
            return lambda *args, **kwargs: (seen.append(name), real(*args, **kwargs))[1]

        with monkeypatch.context() as patch:
            for name in [name for name in dir(torch) if name.startswith("_foreach_")]:
                patch.setattr(torch, name, counted(name))
            patch.setattr(fused.reference, "update", None)
            stepper.step()
        return len(seen)

    assert 0 < calls(40) == calls(2) < 14


def test_a_formula_without_a_form_for_many_is_refused() -> None:
    plain = formulas.PlainSgd(1.0, 0.1, 0.0)
    with pytest.raises(TypeError, match="no update of many tensors for PlainSgd"):
        update_many(plain, [lane(3, SGD, torch.float32, torch.float32, False)])
