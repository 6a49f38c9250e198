"""The profiler's sections on two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from support.ranks import run_ranks


def train(folder: str) -> tuple[Any, dict[str, float], bool]:
    """Three steps; what the collective log, the breakdown and the monitor know on this rank."""
    import torch.distributed as dist

    import deepspeed
    from deepspeed.adapters.profiler import log_summary

    where = {"enabled": True, "output_path": folder, "job_name": f"rank{dist.get_rank()}"}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": 2,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "wall_clock_breakdown": True,
            "comms_logger": {"enabled": True},
            "csv_monitor": where,
        },
    )
    for _ in range(3):
        engine.backward(engine(torch.ones(2, 8)).pow(2).mean())
        engine.step()
    summary = log_summary(show_straggler=True, return_dict=True)
    (breakdown,) = (h for h in engine.hooks.hooks if h.key == "wall_clock_breakdown")
    wrote = (Path(folder) / f"rank{dist.get_rank()}").exists()
    engine.destroy()
    return summary, breakdown.last, wrote


def test_collectives_are_logged_and_only_rank_zero_writes(tmp_path: Path) -> None:
    results = run_ranks(train, 2, str(tmp_path))
    for summary, phases, _ in results:
        assert summary["all_reduce"]
        assert phases["backward_allreduce"] > 0
        whole = phases["backward_inner"] + phases["backward_allreduce"]
        assert abs(whole - phases["backward"]) < 1e-6
    assert [wrote for *_, wrote in results] == [True, False]
