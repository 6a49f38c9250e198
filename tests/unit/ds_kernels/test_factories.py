"""Optimizers by JSON type and flat steps by name, found through entry points."""

from __future__ import annotations

import copy
import logging
import pickle
from importlib.metadata import entry_points

import pytest
import torch

from ds_kernels import OptionError
from ds_kernels.formulas import is_decoupled

FOUNDING_ADAM = {"lr": 2e-4, "max_grad_norm": 1.0, "weight_decay": 0.01, "bias_correction": False}


def parameters() -> list[torch.nn.Parameter]:
    torch.manual_seed(3)
    params = [torch.nn.Parameter(torch.randn(4, 6)), torch.nn.Parameter(torch.randn(6))]
    for param in params:
        param.grad = torch.randn_like(param)
    return params


def make(kind: str, options: dict, params: list | None = None) -> torch.optim.Optimizer:
    (entry,) = entry_points(group="deepspeed.optimizers", name=kind)
    return entry.load()(parameters() if params is None else params, options)


@pytest.mark.parametrize("kind", ["adam", "adamw", "lamb", "lion", "adagrad", "sgd", "muon"])
def test_each_type_steps(kind: str) -> None:
    params = parameters()
    before = [param.detach().clone() for param in params]
    make(kind, {"lr": 0.1, "weight_decay": 0.01}, params).step()
    assert not any(torch.equal(a, b) for a, b in zip(params, before, strict=True))


def test_the_bert_config_of_the_tutorials_runs_and_says_what_clips(caplog) -> None:
    with caplog.at_level(logging.WARNING, logger="ds_kernels"):
        optimizer = make("adam", FOUNDING_ADAM)
    optimizer.step()
    assert "gradient_clipping is what clips" in caplog.text
    assert optimizer.param_groups[0]["bias_correction"] is False


@pytest.mark.parametrize(
    ("kind", "options", "wanted"),
    [
        ("adam", {}, True),
        ("adam", {"adam_w_mode": False}, False),
        ("adam", {"torch_adam": True}, True),
        ("adam", {"torch_adam": True, "adam_w_mode": False}, False),
        ("adamw", {"torch_adam": True, "amsgrad": True}, True),
    ],
)
def test_adam_decays_decoupled_unless_told_otherwise(kind: str, options, wanted: bool) -> None:
    optimizer = make(kind, options)
    assert is_decoupled(optimizer.param_groups[0]) is wanted
    assert type(optimizer).__module__.startswith("torch") is options.get("torch_adam", False)
    usual = 0.01 if type(optimizer) is torch.optim.AdamW else 0.0  # torch's own, asked for by name
    assert optimizer.param_groups[0]["weight_decay"] == usual


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("adam", {"lrr": 1, "zap": 2}, r"'lrr' \(did you mean 'lr'\?\), 'zap'; it has"),
        ("adam", {"amsgrad": True}, "torch_adam true"),
        ("adam", {"torch_adam": True, "bias_correction": False}, "cannot leave out"),
        ("adamw", {"adam_w_mode": False}, "write type Adam"),
        ("lamb", {"eps_inside_sqrt": True}, "eps_inside_sqrt is not offered"),
        ("lion", {"eps": 1e-8}, "Lion has no option 'eps'"),
        ("muon", {"beta": 1}, "did you mean 'betas'"),
    ],
)
def test_options_that_cannot_act_are_refused_by_name(kind: str, options, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make(kind, options)


def test_muon_takes_matrices_and_leaves_embeddings_and_vectors_to_adam() -> None:
    matrix, vector, table = (torch.nn.Parameter(torch.randn(*s)) for s in [(4, 6), (6,), (9, 4)])
    named = [("layer.weight", matrix), ("layer.bias", vector), ("embed.weight", table)]
    optimizer = make("muon", {"muon_lr": 0.05, "adam_lr": 0.01, "momentum": 0.9}, named)
    kinds = [(g["use_muon"], g["lr"], len(g["params"])) for g in optimizer.param_groups]
    assert kinds == [(True, 0.05, 1), (False, 0.01, 2)]
    alone = torch.nn.Parameter(matrix.detach().clone())
    reference = torch.optim.Muon([alone], lr=0.05, momentum=0.9, weight_decay=0.0)
    matrix.grad = torch.randn_like(matrix)
    alone.grad = matrix.grad.clone()
    optimizer.step()
    reference.step()
    assert torch.equal(matrix, alone)


def test_muon_follows_schedules_and_resumes() -> None:
    params, copies = parameters(), parameters()
    first, second = make("muon", {"lr": 0.1}, params), make("muon", {"lr": 0.1}, copies)
    first.step()
    second.load_state_dict(copy.deepcopy(first.state_dict()))  # torch's would share its tensors
    for target, source in zip(copies, params, strict=True):
        target.data.copy_(source)
    for optimizer in (first, second):
        optimizer.param_groups[0]["lr"] = 0.01
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(params, copies, strict=True))


@pytest.mark.parametrize("name", ["adam", "adamw", "adagrad", "lion", "sgd"])
def test_a_flat_step_does_what_its_optimizer_does(name: str) -> None:
    (entry,) = entry_points(group="deepspeed.flat_steps", name=name)
    step = entry.load()()
    params = [torch.nn.Parameter(torch.randn(1000))]
    master, out = params[0].detach().clone(), torch.zeros(1000, dtype=torch.bfloat16)
    optimizer = make(name, {"lr": 0.1, "weight_decay": 0.1}, params)
    states = {key: torch.zeros(1000) for key in step.state_names}
    for count in (1, 2, 3):
        params[0].grad = torch.randn(1000)
        optimizer.step(grad_scale=0.5)
        group = optimizer.param_groups[0]
        step(
            master, params[0].grad, states, out=out, hyper=group, step=count, grad_scale=0.5
        ).wait()
    assert torch.equal(master, params[0])
    assert torch.equal(out, master.bfloat16())


def test_a_flat_step_takes_the_groups_of_torchs_optimizers() -> None:
    (entry,) = entry_points(group="deepspeed.flat_steps", name="adam")
    param = torch.nn.Parameter(torch.randn(1000))
    param.grad = torch.randn(1000)
    master = param.detach().clone()
    optimizer = torch.optim.AdamW([param], lr=0.1, weight_decay=0.1)
    states = {"exp_avg": torch.zeros(1000), "exp_avg_sq": torch.zeros(1000)}
    group = optimizer.param_groups[0]
    handle = entry.load()()(
        master, param.grad, states, out=None, hyper=group, step=1, grad_scale=1.0
    )
    optimizer.step()
    handle.wait()
    torch.testing.assert_close(master, param.detach(), rtol=1e-6, atol=1e-7)


def test_a_flat_step_names_missing_states_and_refuses_amsgrad() -> None:
    (entry,) = entry_points(group="deepspeed.flat_steps", name="adamw")
    step, flat = entry.load()(), torch.zeros(3)
    group = {"lr": 0.1, "betas": (0.9, 0.99)}
    with pytest.raises(ValueError, match="states lacks exp_avg_sq"):
        step(flat, flat, {"exp_avg": flat}, out=None, hyper=group, step=1, grad_scale=1.0)
    with pytest.raises(OptionError, match="amsgrad"):
        step(flat, flat, {}, out=None, hyper=group | {"amsgrad": True}, step=1, grad_scale=1.0)


def test_muon_takes_more_groups_and_splits_them_too() -> None:
    optimizer = make("muon", {"muon_lr": 0.05, "adam_lr": 0.01})
    added = parameters()
    before = [param.detach().clone() for param in added]
    optimizer.add_param_group({"params": added, "weight_decay": 0.5})
    optimizer.step()
    kinds = [(g["use_muon"], g["lr"], g["weight_decay"]) for g in optimizer.param_groups]
    assert kinds == [(True, 0.05, 0.0), (False, 0.01, 0.0), (True, 0.05, 0.5), (False, 0.01, 0.5)]
    assert not any(torch.equal(a, b) for a, b in zip(added, before, strict=True))


def test_what_a_muon_group_says_goes_before_the_options() -> None:
    groups = [{"params": parameters(), "betas": (0.5, 0.6), "momentum": 0.7}]
    optimizer = make("muon", {"betas": (0.1, 0.2), "momentum": 0.3}, groups)
    assert optimizer.param_groups[0]["momentum"] == 0.7
    assert optimizer.param_groups[1]["betas"] == (0.5, 0.6)


@pytest.mark.parametrize("again", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copied_muon_goes_on_alike(again) -> None:
    params = parameters()
    first = make("muon", {"lr": 0.1}, params)
    first.step()
    second = again(first)
    copies = [param for group in second.param_groups for param in group["params"]]
    for target, source in zip(copies, params, strict=True):
        target.grad = source.grad.clone()
    for optimizer in (first, second):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(params, copies, strict=True))
    assert not set(map(id, params)) & set(map(id, copies))


def test_muon_keeps_moments_wide_through_a_resume_and_refuses_other_groups() -> None:
    params = [torch.nn.Parameter(param.detach().bfloat16()) for param in parameters()]
    optimizer = make("muon", {}, params)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.state[params[1]]["exp_avg"].dtype is torch.float32
    with pytest.raises(OptionError, match=r"use_muon \[None, None\], those of this optimizer"):
        optimizer.load_state_dict(torch.optim.SGD([{"params": [p]} for p in params]).state_dict())
