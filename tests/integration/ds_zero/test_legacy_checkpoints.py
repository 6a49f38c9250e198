"""Checkpoints that the reference 0.19.6 wrote on two ranks go on training here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from ds_core.contracts import LoadWhat
from ds_zero.consolidate import get_fp32_state_dict_from_zero_checkpoint
from ds_zero.sections import ZeroSection
from ds_zero.universal import convert, open_foreign
from support.ranks import run_ranks
from support.zero_models import Reference, engine_of, train

DATA = Path(__file__).parent / "data"


def resume(folder: str, stage: int, dtype: torch.dtype | None) -> tuple[list[float], list[float]]:
    torch.manual_seed(1)  # weights that the checkpoint must replace
    engine = engine_of(
        ZeroSection(stage=stage, stage3_param_persistence_threshold=0), Reference(), dtype=dtype
    )
    names = [group["params"] for group in engine.strategy.facts()["param_groups"]]
    found = open_foreign(folder, group_names=names)
    engine.strategy.load(found.reader, found.facts, what=LoadWhat())
    losses = train(engine, range(3, 6))
    engine.destroy()
    path = DATA / Path(folder).name / f"losses{dist.get_rank()}.pt"
    expected = torch.load(path) if path.exists() else losses
    return losses, expected


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("written", [0, 1, 2, 3])
def test_loss_curve_goes_on_after_the_reference(written, dtype):
    compute = torch.bfloat16 if dtype == "bf16" else None
    folder = str(DATA / f"stage{written}_{dtype}")
    here = {0: 1, 1: 3, 2: 1, 3: 2}[written]
    for losses, expected in run_ranks(resume, 2, folder, here, compute):
        assert losses == pytest.approx(expected, rel=1e-5 if dtype == "fp32" else 2e-2)


def test_every_stage_holds_the_same_weights():
    states = [
        get_fp32_state_dict_from_zero_checkpoint(DATA / f"stage{stage}_fp32") for stage in range(4)
    ]
    for state in states:
        assert state.keys() == Reference().state_dict().keys()
        assert state["head.weight"] is state["embed.weight"]
        for name, value in state.items():
            torch.testing.assert_close(value, states[0][name], rtol=1e-5, atol=1e-6)


def test_universal_checkpoint_of_the_reference_resumes(tmp_path):
    convert(DATA / "stage1_fp32" / "t", tmp_path / "universal" / "stage1_fp32")
    folder = str(tmp_path / "universal" / "stage1_fp32")
    for losses, expected in run_ranks(resume, 2, folder, 2, None):
        assert losses == pytest.approx(expected, rel=1e-5)


def test_payload_in_a_pickle_never_runs(tmp_path):
    class Payload:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    torch.save({"module": {}, "evil": Payload()}, tmp_path / "mp_rank_00_model_states.pt")
    with pytest.raises(Exception, match="plain data"):
        open_foreign(tmp_path)
    assert not (tmp_path / "ran").exists()
