"""Large tensors move onto huge pages without anyone noticing but the clock."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor

from ds_kernels import CPUAdam, CPULion, memory, to_huge_pages
from ds_kernels.flat import adamw

LARGE = memory.HUGE_BYTES // 4  # float32 numbers
Moved = list[int]


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Moved:
    """Addresses that were moved."""
    seen: Moved = []
    monkeypatch.setattr(memory, "to_huge_pages", lambda tensor: seen.append(tensor.data_ptr()))
    return seen


def trained(count: int) -> tuple[CPUAdam, torch.nn.Parameter]:
    param = torch.nn.Parameter(torch.ones(count))
    param.grad = torch.ones(count)
    return CPUAdam([param]), param


def test_moving_keeps_address_and_contents() -> None:
    values = torch.arange(3 * LARGE)
    tensor, address = values.clone(), values.data_ptr()
    assert 0 <= to_huge_pages(tensor) <= tensor.nbytes
    assert to_huge_pages(values[5:]) <= values.nbytes
    assert torch.equal(tensor, values)
    assert values.data_ptr() == address


@pytest.mark.parametrize("tensor", [torch.ones(0), torch.ones(7)])
def test_small_tensors_have_no_whole_page(tensor: Tensor) -> None:
    assert to_huge_pages(tensor) == 0


@pytest.mark.parametrize("text", [None, "always madvise [never]\n"])
def test_a_system_that_has_none_or_forbids_them_is_left_alone(tmp_path, text, monkeypatch) -> None:
    switch = tmp_path / "enabled"
    if text is not None:
        switch.write_text(text)
    monkeypatch.setattr(memory, "SWITCH", switch)
    assert to_huge_pages(torch.ones(3 * LARGE)) == 0


def test_what_stays_in_place_is_moved_once_at_the_second_step(moved: Moved) -> None:
    optimizer, param = trained(LARGE)
    optimizer.step()
    assert not moved
    for _ in range(3):
        optimizer.step()
    state = optimizer.state[param]
    tensors = (param, param.grad, state["exp_avg"], state["exp_avg_sq"])
    assert moved == [tensor.data_ptr() for tensor in tensors]


def test_gradients_allocated_anew_are_not_moved(moved: Moved) -> None:
    optimizer, param = trained(LARGE)
    kept = []
    for _ in range(4):
        kept.append(param.grad)
        optimizer.step()
        param.grad = torch.ones(LARGE)
    assert len(moved) == 3
    assert not {grad.data_ptr() for grad in kept} & set(moved)


def test_small_parameters_are_not_looked_at(moved: Moved) -> None:
    optimizer, _ = trained(1025)
    for _ in range(3):
        optimizer.step()
    assert not moved


def test_copies_and_pickles_look_for_themselves(moved: Moved) -> None:
    optimizer, _ = trained(LARGE)
    optimizer.step()
    for twin in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        param = twin.param_groups[0]["params"][0]
        param.grad = torch.ones_like(param)
        twin.step()
        assert not moved
        twin.step()
        assert param.data_ptr() in moved
        moved.clear()


def test_flat_steps_move_their_buffers(moved: Moved) -> None:
    step, (master, grad, first, second) = adamw(), torch.zeros(4, LARGE).unbind()
    states = {"exp_avg": first, "exp_avg_sq": second}
    hyper = {"lr": 0.1, "betas": (0.9, 0.999)}
    for count in (1, 2, 3):
        step(master, grad, states, out=None, hyper=hyper, step=count, grad_scale=1.0).wait()
    assert len(moved) == 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_moments_start_at_cache_lines_apart_from_each_other(dtype: torch.dtype) -> None:
    param = torch.nn.Parameter(torch.ones(2, LARGE))
    param.grad = torch.ones_like(param)
    optimizer = CPUAdam([param], state_dtype=dtype)
    optimizer.step()
    first, second = (optimizer.state[param][name] for name in ("exp_avg", "exp_avg_sq"))
    assert first.shape == second.shape == param.shape
    assert first.data_ptr() % memory.LINE == second.data_ptr() % memory.LINE == 0
    assert (first.data_ptr() - second.data_ptr()) % memory.PAGE >= 1024
    assert first.untyped_storage().nbytes() == first.nbytes


def test_one_moment_is_large_too() -> None:
    param = torch.nn.Parameter(torch.ones(LARGE))
    param.grad = torch.ones_like(param)
    optimizer = CPULion([param])
    optimizer.step()
    assert optimizer.state[param]["exp_avg"].data_ptr() % memory.LINE == 0
