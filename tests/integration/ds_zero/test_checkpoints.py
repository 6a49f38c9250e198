"""Any stage, offload and world size resumes any other, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ds_core.contracts import WEIGHT
from ds_core.training_state import load_engine, save_engine
from ds_zero.consolidate import (
    convert_zero_checkpoint_to_fp32_state_dict,
    get_fp32_state_dict_from_zero_checkpoint,
)
from ds_zero.recover import export
from support.ranks import run_ranks
from support.strategies_zero import SECTIONS
from support.zero_models import Reference, engine_of, train

LAYOUTS = ["stage1", "stage2", "stage3-frugal", "stage2-nvme", "stage3-nvme"]


def state_of(engine) -> dict[str, torch.Tensor]:
    """Everything trained, whole: masters and moments by name."""
    found = {}
    for name, param in engine.module.named_parameters():
        for slot in (WEIGHT, "exp_avg", "exp_avg_sq") if param.requires_grad else ():
            found[f"{name}/{slot}"] = engine.strategy.access.full(param, slot)
        if not param.requires_grad:
            found[name] = engine.strategy.held(param).clone()
    return found


def save_after_three(layout: str, folder: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    engine = engine_of(SECTIONS[layout], Reference())
    train(engine, range(3))
    save_engine(engine, folder, "t")
    state = state_of(engine)
    engine.destroy()
    return state


def load_and_look(layout: str, folder: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    engine = engine_of(SECTIONS[layout], Reference())
    load_engine(engine, folder).close()
    state = state_of(engine)
    train(engine, range(3, 4))
    engine.destroy()
    return state


@pytest.mark.parametrize("written", LAYOUTS)
def test_every_layout_and_world_size_resumes_bit_for_bit(written, tmp_path):
    saved = run_ranks(save_after_three, 2, written, str(tmp_path))[0]
    for read, ranks in zip([*LAYOUTS[1:], LAYOUTS[0]], (1, 3, 2, 1, 2), strict=True):
        for state in run_ranks(load_and_look, ranks, read, str(tmp_path)):
            assert state.keys() == saved.keys()
            for key, value in saved.items():
                assert torch.equal(state[key], value), f"{key}: {written} to {read} on {ranks}"


@pytest.mark.parametrize("layout", ["stage1", "stage3"])
def test_consolidation_gives_every_name_of_the_live_model(layout, tmp_path):
    live = run_ranks(save_after_three, 2, layout, str(tmp_path))[0]
    state = get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    assert state.keys() == Reference().state_dict().keys()
    assert torch.equal(state["head.weight"], live["embed.weight/weight"])
    assert torch.equal(state["frozen.weight"], live["frozen.weight"])
    Reference().load_state_dict(state, strict=True)


@pytest.mark.parametrize("limit", [1, "1KB", None])
@pytest.mark.parametrize("safe", [True, False])
def test_output_files_hold_every_tensor_for_every_limit(safe, limit, tmp_path):
    run_ranks(save_after_three, 2, "stage3", str(tmp_path))
    expected = get_fp32_state_dict_from_zero_checkpoint(tmp_path)
    files = convert_zero_checkpoint_to_fp32_state_dict(
        tmp_path, tmp_path / "out", max_shard_size=limit, safe_serialization=safe
    )
    found: dict[str, torch.Tensor] = {}
    for path in files:
        found |= load_file(path)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def load_file(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file as load_safetensors

    return load_safetensors(path) if path.suffix == ".safetensors" else torch.load(path)


def test_twelve_ranks_and_a_hundred_layers_keep_their_order(tmp_path):
    live = run_ranks(save_many, 12, str(tmp_path), timeout=120)[0]
    export(tmp_path, tmp_path / "out", safe_serialization=True)
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == live.keys()
    assert all(torch.equal(found[name], value) for name, value in live.items())


def save_many(folder: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(101)))
    engine = engine_of(SECTIONS["stage1"], model)
    save_engine(engine, folder, "t")
    return {name: param.detach().clone() for name, param in model.named_parameters()}
