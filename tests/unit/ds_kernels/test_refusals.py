"""What cannot be stepped is refused by name, before anything is changed."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from ds_kernels import CPUSGD, CPUAdagrad, CPUAdam, OptionError, TensorError, adam_step
from ds_kernels.muon import MuonWithAdam

pytestmark = pytest.mark.native


def freed() -> Tensor:
    tensor = torch.ones(4)
    tensor.untyped_storage().resize_(0)
    return tensor


class Elsewhere(Tensor):
    """A tensor without memory of its own, as a DTensor or FakeTensor is."""

    @staticmethod
    def __new__(cls, size: int) -> Elsewhere:
        return Tensor._make_wrapper_subclass(cls, (size,), dtype=torch.float32)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        raise NotImplementedError


BAD: dict[str, tuple[Callable[[], Tensor], str]] = {
    "size": (lambda: torch.ones(5), "has 5 elements; its parameter has 4"),
    "strides": (lambda: torch.ones(8)[::2], "is not contiguous"),
    "device": (lambda: torch.ones(4, device="meta"), "is on meta; it must be on cpu"),
    "dtype": (lambda: torch.ones(4, dtype=torch.float64), "has dtype torch.float64"),
    "layout": (lambda: torch.ones(4).to_sparse(), ".*only strided"),
    "freed": (freed, "has been freed"),
    "subclass": (lambda: Elsewhere(4), "is a Elsewhere, whose elements lie elsewhere"),
    "negated": (lambda: torch._neg_view(torch.ones(4)), "is lazily negated"),
}


@pytest.mark.parametrize("position", range(5))
@pytest.mark.parametrize("name", BAD)
def test_a_bad_tensor_is_named_and_nothing_changes(name: str, position: int, level: str) -> None:
    make, message = BAD[name]
    good = [[torch.ones(4), torch.ones(4)] for _ in range(5)]
    good[position][1] = make()
    if position == 0 and name == "size":
        message = "has 4 elements; its parameter has 5"
    role = ["", "grad of ", "exp_avg of ", "exp_avg_sq of ", "out of "][position]
    wanted = f"{message}" if (position, name) == (0, "size") else rf"{role}master\[1\] {message}"
    with pytest.raises(TensorError, match=wanted):
        adam_step(*good, step=1, lr=0.1)
    assert torch.equal(good[0][0], torch.ones(4))


def test_moments_of_one_parameter_share_a_dtype() -> None:
    tensors = [torch.ones(4) for _ in range(4)]
    tensors[3] = tensors[3].bfloat16()
    with pytest.raises(TensorError, match=r"exp_avg_sq of master is torch\.bfloat16"):
        adam_step(*tensors, step=1, lr=0.1)


def test_columns_of_different_lengths_are_named() -> None:
    two = [torch.ones(4), torch.ones(4)]
    with pytest.raises(TensorError, match="grad has 1 tensors; master has 2"):
        adam_step(two, two[:1], two, two, step=1, lr=0.1)


def test_an_optimizer_names_the_parameter() -> None:
    param = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = CPUAdam([("weight", param)])
    param.grad = torch.ones(2, 2)
    param.grad.untyped_storage().resize_(0)
    with pytest.raises(TensorError, match=r"grad of parameter 'weight' \(2, 2\) has been freed"):
        optimizer.step()
    assert int(optimizer.state[param]["step"]) == 0


def test_one_bad_parameter_keeps_all_groups_as_they_are() -> None:
    good, bad = torch.nn.Parameter(torch.ones(4)), torch.nn.Parameter(torch.ones(4).double())
    good.grad, bad.grad = torch.ones(4), torch.ones(4).double()
    optimizer = CPUAdam([{"params": [good]}, {"params": [bad]}])
    with pytest.raises(TensorError, match="parameter 0 of group 1"):
        optimizer.step()
    assert torch.equal(good, torch.ones(4))
    assert int(optimizer.state[good]["step"]) == 0


def test_sparse_gradients_are_refused() -> None:
    param = torch.nn.Parameter(torch.ones(4))
    param.grad = torch.ones(4).to_sparse()
    with pytest.raises(TensorError, match="grad of parameter 0 of group 0"):
        CPUAdagrad([param]).step()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: CPUAdam(p, amsgrad=True), "amsgrad is not offered"),
        (lambda p: CPUAdam([{"params": p, "amsgrad": True}]), "amsgrad is not offered"),
        (lambda p: CPUAdam(p, lr=-1.0), "lr is -1.0"),
        (lambda p: CPUAdam(p, betas=(0.9, 1.0)), "betas"),
        (lambda p: CPUAdam(p, state_dtype=torch.int8), "state_dtype is torch.int8"),
        (lambda p: CPUSGD(p, nesterov=True), "nesterov needs a momentum"),
    ],
)
def test_options_out_of_range_are_refused(make: Callable, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make([torch.nn.Parameter(torch.ones(1))])


def test_a_state_dict_with_amsgrad_is_refused() -> None:
    param = torch.nn.Parameter(torch.ones(1))
    state = torch.optim.AdamW([param], amsgrad=True).state_dict()
    with pytest.raises(OptionError, match="amsgrad"):
        CPUAdam([param]).load_state_dict(state)


def test_moments_keep_their_dtype_through_saving_copying_and_pickling() -> None:
    param = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = CPUAdam([param])
    param.grad = torch.ones_like(param)
    optimizer.step()
    again = CPUAdam([param])
    again.load_state_dict(optimizer.state_dict())
    copies = [again, copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
    for one in copies:
        (state,) = one.state.values()
        assert state["exp_avg"].dtype is torch.float32
        assert one.state_dtype is torch.float32


@pytest.mark.parametrize("make", [CPUAdam, MuonWithAdam])
def test_saved_moments_of_another_shape_are_named_and_nothing_is_loaded(make: Callable) -> None:
    saved, param = torch.nn.Parameter(torch.ones(2, 3)), torch.nn.Parameter(torch.ones(3, 2))
    first, second = make([saved]), make([param])
    saved.grad = torch.ones(2, 3)
    first.step()
    with pytest.raises(TensorError, match=r"parameter 0 of group 0 \(3, 2\) has shape \(2, 3\)"):
        second.load_state_dict(first.state_dict())
    assert not second.state
