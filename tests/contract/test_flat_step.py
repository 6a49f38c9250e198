"""What every published flat step keeps of the `FlatStep` protocol."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pytest
import torch
from torch import Tensor

PUBLISHED = sorted(entry_points(group="deepspeed.flat_steps"), key=lambda entry: entry.name)
GROUPS: dict[str, dict[str, Any]] = {
    "adam": {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.01},
    "adamw": {"lr": 0.1, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.01},
    "adagrad": {"lr": 0.1, "eps": 1e-10, "weight_decay": 0.01},
    "lion": {"lr": 0.1, "betas": (0.9, 0.99), "weight_decay": 0.01},
    "sgd": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
}

each = pytest.mark.parametrize("entry", PUBLISHED, ids=lambda entry: entry.name)


def made(entry: EntryPoint) -> Any:
    """The step itself, or what its zero-argument factory makes."""
    found = entry.load()
    return found if hasattr(found, "state_names") else found()


class Problem:
    """Flat buffers and a call of the step on a slice of them."""

    def __init__(self, entry: EntryPoint, count: int = 1000) -> None:
        torch.manual_seed(5)
        self.step, self.group = made(entry), GROUPS[entry.name]
        self.master, self.grad = torch.randn(count), torch.randn(count)
        self.states = {name: torch.zeros(count) for name in self.step.state_names}

    def run(self, part: slice, out: Tensor | None = None, scale: float = 1.0, step: int = 1) -> Any:
        states = {name: state[part] for name, state in self.states.items()}
        return self.step(
            self.master[part],
            self.grad[part],
            states,
            out=out,
            hyper=self.group,
            step=step,
            grad_scale=scale,
        )


@each
def test_waiting_twice_is_fine_and_done_after(entry: EntryPoint) -> None:
    pending = Problem(entry).run(slice(None))
    pending.wait()
    pending.wait()
    assert pending.done()


@each
def test_slices_do_what_the_whole_does(entry: EntryPoint) -> None:
    whole, cut = Problem(entry), Problem(entry)
    for step in (1, 2, 3):
        whole.run(slice(None), step=step).wait()
        for part in [slice(0, 1), slice(1, 333), slice(333, None)]:
            cut.run(part, step=step).wait()
    assert torch.equal(whole.master, cut.master)


@each
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_out_receives_the_new_value_in_its_dtype(entry: EntryPoint, dtype: torch.dtype) -> None:
    problem, out = Problem(entry), torch.zeros(1000, dtype=dtype)
    problem.run(slice(None), out=out).wait()
    assert torch.equal(out, problem.master.to(dtype))


@each
def test_gradients_are_scaled_before_use_and_left_alone(entry: EntryPoint) -> None:
    scaled, plain = Problem(entry), Problem(entry)
    plain.grad *= 0.5
    before = scaled.grad.clone()
    scaled.run(slice(None), scale=0.5).wait()
    plain.run(slice(None)).wait()
    assert torch.equal(scaled.master, plain.master)
    assert torch.equal(scaled.grad, before)


@each
def test_low_precision_gradients_are_taken(entry: EntryPoint) -> None:
    low, wide = Problem(entry), Problem(entry)
    low.grad = low.grad.bfloat16()
    wide.grad = low.grad.float()
    low.run(slice(None)).wait()
    wide.run(slice(None)).wait()
    assert torch.equal(low.master, wide.master)


@each
def test_an_empty_slice_is_no_work(entry: EntryPoint) -> None:
    problem = Problem(entry)
    before = problem.master.clone()
    problem.run(slice(5, 5)).wait()
    assert torch.equal(problem.master, before)
