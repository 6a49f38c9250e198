"""The Triton kernels, run by Triton's interpreter, do what the compiled loops do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from ds_kernels import FusedAdam, FusedLamb, FusedLion, backend, formulas
from ds_kernels.formulas import ADAM, LAMB, LION, Rule
from ds_kernels.lanes import Lane

os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are first imported

GROUP = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
GROUP |= {"min_coeff": 0.01, "max_coeff": 10.0, "decoupled_weight_decay": True}


def lanes(rule: Rule, dtype: torch.dtype, copy: torch.dtype | None) -> list[Lane]:
    def lane(size: int) -> Lane:
        states = tuple(torch.rand(size) for _ in rule.state_names)
        out = None if copy is None else torch.zeros(size, dtype=copy)
        param, grad = torch.randn(size).to(dtype), torch.randn(size).to(dtype)
        return Lane(param, grad, states, out, f"tensor of {size}", rule.state_names)

    return [lane(size) for size in (1, 4096, 0, 4099)]


def cloned(given: list[Lane]) -> list[Lane]:
    def clone(t: Tensor | None) -> Tensor | None:
        return None if t is None else t.clone()

    return [
        lane._replace(
            param=lane.param.clone(),
            states=tuple(map(torch.clone, lane.states)),
            out=clone(lane.out),
        )
        for lane in given
    ]


@pytest.mark.parametrize("copy", [None, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rule", [ADAM, LION, LAMB], ids=lambda rule: rule.name)
def test_interpreter_and_compiled_loops_agree(
    rule: Rule, dtype: torch.dtype, copy: torch.dtype | None
) -> None:
    from ds_kernels.triton_kernels import run

    ours = lanes(rule, dtype, copy)
    theirs = cloned(ours)
    formula = rule.scalars(GROUP, 3, 0.5)
    trust = run(formula, ours)
    wanted = backend.select().run(formula, theirs)
    assert torch.as_tensor(trust).tolist() == pytest.approx(wanted, rel=1e-5)
    eps = max(1e-6, torch.finfo(dtype).eps)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.param, b.param, rtol=eps, atol=1e-6)
        torch.testing.assert_close(a.states, b.states, rtol=1e-6, atol=1e-7)
        if copy is not None:
            torch.testing.assert_close(a.out, b.out, rtol=2 * torch.finfo(copy).eps, atol=1e-6)


@pytest.mark.parametrize("optimizer", [FusedAdam, FusedLion, FusedLamb])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_gpu_names_step_cpu_tensors(optimizer: type, dtype: torch.dtype) -> None:
    """Case 10.1: every public optimizer works on the CPU, empty tensors included."""
    params = [torch.nn.Parameter(torch.ones(n, dtype=dtype)) for n in (0, 5)]
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer(params, lr=0.1).step()
    assert (params[1] < 1).all()


def test_another_device_is_stepped_by_plain_torch() -> None:
    param = torch.nn.Parameter(torch.ones(3, device="meta"))
    param.grad = torch.ones_like(param)
    optimizer = FusedAdam([param])
    optimizer.step()
    assert optimizer.state[param]["exp_avg"].device.type == "meta"


def test_formulas_without_a_kernel_are_refused() -> None:
    from ds_kernels.triton_kernels import run

    with pytest.raises(TypeError, match="no Triton kernel for PlainSgd"):
        run(formulas.PlainSgd(1.0, 0.1, 0.0), lanes(ADAM, torch.float32, None))


def test_importing_the_package_imports_neither_triton_nor_the_compiled_module() -> None:
    names = ("triton", "ds_kernels._native")
    code = f"import sys, ds_kernels; print(*(name in sys.modules for name in {names}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
