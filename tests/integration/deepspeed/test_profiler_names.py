"""Profiler, timers, monitors and collective log under the import paths that programs use."""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import deepspeed
from deepspeed.comm.facade import TAPS
from deepspeed.legacy.finder import NotOffered
from deepspeed.legacy.profiler import NAMES
from ds_core.errors import ConfigError

EVERY_NAME = [(module, name) for module, names in NAMES.items() for name in names]


@pytest.mark.parametrize(("module", "name"), EVERY_NAME)
def test_every_old_name_is_served_or_explains_itself(module: str, name: str) -> None:
    found = getattr(importlib.import_module(module), name)
    if NAMES[module][name].startswith("!"):
        with pytest.raises(NotOffered, match=name):
            found()


def test_the_one_line_profile_gives_the_reference_numbers() -> None:
    from deepspeed.profiling.flops_profiler import get_model_profile

    counts = get_model_profile(nn.Linear(3, 4), (2, 3), print_profile=False, as_string=False)
    assert counts == (48, 24, 16)
    text = get_model_profile(nn.Linear(3, 4), (2, 3), print_profile=False)
    assert text == ("48 ", "24 MACs", "16")


def test_monitors_are_made_from_a_configuration(tmp_path: Path) -> None:
    from deepspeed.monitor.config import get_monitor_config
    from deepspeed.monitor.csv_monitor import csvMonitor
    from deepspeed.monitor.monitor import MonitorMaster

    section = {"enabled": True, "output_path": str(tmp_path), "job_name": "job"}
    config = get_monitor_config({"csv_monitor": section, "train_batch_size": 1})
    MonitorMaster(config).write_events([("Time per step", 1.5, 10)])
    csvMonitor(config).write_events([("Time per step", 2.5, 20)])
    text = (tmp_path / "job" / "Time per step.csv").read_text().split()
    assert text == ["step,Time", "per", "step", "10,1.5", "20,2.5"]


def test_a_throughput_timer_takes_its_section_first() -> None:
    from deepspeed.utils.config import DeepSpeedThroughputTimerConfig
    from deepspeed.utils.timer import ThroughputTimer

    timer = ThroughputTimer(DeepSpeedThroughputTimerConfig(), batch_size=4, start_step=0)
    timer.start()
    timer.stop(global_step=True)
    assert timer.avg_samples_per_sec() > 0


def test_a_collective_log_is_fed_by_hand(caplog: pytest.LogCaptureFixture) -> None:
    from deepspeed.utils.comms_logging import CommsLogger, convert_size

    log = CommsLogger()
    log.append("all_reduce", "all_reduce", 2.0, 1000)
    assert not log.has_data()
    log.start_profiling_op(["all_reduce"])
    log.append("all_reduce", "grads", 2.0, 1000)
    assert log.get_raw_data() == {"all_reduce": {1000: [2.0]}}
    with caplog.at_level(logging.INFO):
        summary: Any = log.log_all(return_dict=True)
    assert summary["all_reduce"][1000]["count"] == 1
    assert "all_reduce" in caplog.text
    assert convert_size(123456) == "120.56 KB"


def test_a_summary_without_a_logger_says_what_to_set() -> None:
    from deepspeed.adapters.profiler import log_summary

    with pytest.raises(ConfigError, match=r"comms_logger\.enabled"):
        log_summary()
    assert not TAPS.observers


def test_memory_is_logged_only_by_force(caplog: pytest.LogCaptureFixture) -> None:
    from deepspeed.runtime.utils import see_memory_usage

    with caplog.at_level(logging.INFO):
        see_memory_usage("quiet")
        see_memory_usage("after the model", force=True)
    assert "quiet" not in caplog.text
    assert "after the model: device memory" in caplog.text


CONFIG = {
    "train_batch_size": 4,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
}


def train(config: dict[str, Any], steps: int) -> tuple[Any, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config={**CONFIG, **config}
    )
    for _ in range(2 * steps):
        engine.backward(engine(torch.ones(2, 8)).pow(2).mean())
        engine.step()
    return engine, model


PHASES = ("forward", "backward", "backward_inner", "backward_allreduce", "step")


@pytest.mark.parametrize("section", ["flops_profiler", "wall_clock_breakdown"])
def test_either_section_sends_the_times_of_the_phases_to_the_monitors(
    tmp_path: Path, section: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    where = {"enabled": True, "output_path": str(tmp_path), "job_name": "job"}
    profiler = {"enabled": True, "profile_step": 9}  # a step that is not reached
    chosen = profiler if section == "flops_profiler" else True
    engine, _ = train({section: chosen, "csv_monitor": where}, steps=2)
    engine.destroy()
    stems = {path.stem for path in (tmp_path / "job").iterdir()}
    assert stems >= {f"Train_Samples_elapsed_time_ms_{phase}" for phase in PHASES}
    assert ("time (ms)" in caplog.text) == (section == "wall_clock_breakdown")


def test_sections_act_on_a_training_run(tmp_path: Path) -> None:
    from ds_profiler import Profile

    where = {"enabled": True, "output_path": str(tmp_path), "job_name": "job"}
    report = tmp_path / "profile.json"
    engine, _ = train(
        {
            "flops_profiler": {"enabled": True, "profile_step": 2, "output_file": str(report)},
            "wall_clock_breakdown": True,
            "csv_monitor": where,
            "comms_logger": {"enabled": True},
            "timers": {"throughput": {"enabled": True}},
        },
        steps=3,
    )
    profile = Profile.load(report)
    assert (profile.macs, profile.root.backward.macs, profile.samples) == (288, 320, 2)
    assert profile.step_seconds > 0
    files = {path.stem.removeprefix("Train_Samples_") for path in (tmp_path / "job").iterdir()}
    assert files == {"train_loss", "lr", *(f"elapsed_time_ms_{phase}" for phase in PHASES)}
    rows = (tmp_path / "job" / "Train_Samples_train_loss.csv").read_text().split()
    assert [row.split(",")[0] for row in rows] == ["step", "4", "8", "12"]
    engine.destroy()


def test_disabled_sections_attach_nothing() -> None:
    off = {"enabled": False}
    engine, _ = train(
        {
            "flops_profiler": {**off, "profile_step": 1},
            "wall_clock_breakdown": False,
            "comms_logger": {**off, "verbose": True, "prof_ops": ["all_reduce"]},
            "csv_monitor": off,
        },
        steps=1,
    )
    keys = {getattr(hook, "key", "") for hook in engine.hooks.hooks}
    assert not keys & {"flops_profiler", "wall_clock_breakdown", "comms_logger", "csv_monitor"}
    assert not TAPS.observers
    engine.destroy()


def test_an_engine_costs_what_its_module_does() -> None:
    from ds_profiler import FlopsProfiler

    engine, module = train({}, steps=1)
    with FlopsProfiler(module) as bare:
        module(torch.ones(2, 8))
    with FlopsProfiler(engine) as wrapped:
        engine(torch.ones(2, 8))
    assert wrapped.get_total_flops() == bare.get_total_flops()
    engine.destroy()
