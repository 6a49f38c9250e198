"""The profiler, timers, monitors and collective log with the signatures that programs know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import ds_profiler
from deepspeed.comm.facade import TAPS
from ds_core.errors import ConfigError
from ds_profiler.bandwidth import bandwidth
from ds_profiler.comms_log import CommsLog, note
from ds_profiler.monitors import CometMonitor as _Comet
from ds_profiler.monitors import CsvMonitor as _Csv
from ds_profiler.monitors import TensorBoardMonitor as _TensorBoard
from ds_profiler.monitors import WandbMonitor as _Wandb
from ds_profiler.sections import FlopsProfilerSection, MonitorSections, ThroughputSection


class FlopsProfiler(ds_profiler.FlopsProfiler):
    """Profiles `model`; an engine tells batch and world size for the report."""

    def __init__(
        self, model: nn.Module, ds_engine: Any = None, recompute_fwd_factor: float = 0.0
    ) -> None:
        facts = None
        if ds_engine is not None:
            ranks = dist.get_world_size() if dist.is_initialized() else 1
            facts = ds_profiler.RunFacts(
                samples=ds_engine.train_micro_batch_size_per_gpu(),
                world_size=ranks,
                data_parallel=ranks,
            )
        super().__init__(model, facts, recompute_fwd_factor)

    def is_expert_tensor_parallelism_enabled(self) -> bool:
        """False: experts are not split over tensor-parallel ranks."""
        return False


class DeepSpeedFlopsProfilerConfig:
    """Section `flops_profiler` of a configuration dict, as attributes."""

    def __init__(self, param_dict: Mapping[str, Any]) -> None:
        section = FlopsProfilerSection(**param_dict.get("flops_profiler", {}))
        self.enabled = section.enabled
        self.recompute_fwd_factor = section.recompute_fwd_factor
        self.profile_step = section.profile_step
        self.module_depth = section.module_depth
        self.top_modules = section.top_modules
        self.detailed = section.detailed
        self.output_file = section.output_file


def get_monitor_config(param_dict: Mapping[str, Any]) -> MonitorSections:
    """The monitors' sections of a configuration dict."""
    return MonitorSections.from_dict(param_dict)


class TensorBoardMonitor(_TensorBoard):
    """Takes its own section, or the sections of all monitors."""

    def __init__(self, tensorboard_config: Any) -> None:
        super().__init__(_own(tensorboard_config, "tensorboard"))


class WandbMonitor(_Wandb):
    """Takes its own section, or the sections of all monitors."""

    def __init__(self, wandb_config: Any) -> None:
        super().__init__(_own(wandb_config, "wandb"))


class CometMonitor(_Comet):
    """Takes its own section, or the sections of all monitors."""

    def __init__(self, comet_config: Any) -> None:
        super().__init__(_own(comet_config, "comet"))


class csvMonitor(_Csv):
    """Takes its own section, or the sections of all monitors."""

    def __init__(self, csv_config: Any) -> None:
        super().__init__(_own(csv_config, "csv_monitor"))


def _own(config: Any, name: str) -> Any:
    return getattr(config, name) if isinstance(config, MonitorSections) else config


class ThroughputTimer(ds_profiler.ThroughputTimer):
    """Samples a second; `config` is section `timers.throughput`."""

    def __init__(
        self,
        config: ThroughputSection,
        batch_size: int,
        start_step: int = 2,
        steps_per_output: int | None = None,
        monitor_memory: bool = False,
        logging_fn: Callable[[str], None] | None = None,
    ) -> None:
        wait = config.synchronized and torch.cuda.is_available()
        super().__init__(
            max(1, batch_size),
            start_step=start_step,
            steps_per_output=steps_per_output,
            synchronize=torch.cuda.synchronize if wait else None,
            logging_fn=logging_fn,
        )
        self.config = config

    def start(self) -> None:
        """Before a micro-batch; nothing if the section is disabled."""
        if self.config.enabled:
            super().start()


class CommsLogger:
    """A collective log that is fed by hand or by `deepspeed.comm`."""

    def __init__(self) -> None:
        self.log = CommsLog()
        self.enabled = self.prof_all = self.verbose = False
        self.prof_ops: list[str] = []

    def configure(self, comms_config: Any) -> None:
        """Take over section `comms_logger`."""
        section = getattr(comms_config, "comms_logger", comms_config)
        self.enabled, self.prof_all = section.enabled, section.prof_all
        self.prof_ops, self.verbose = list(section.prof_ops), section.verbose

    def start_profiling_comms(self) -> None:
        """Log all collectives."""
        self.prof_all = True

    def stop_profiling_comms(self) -> None:
        """Log only those named."""
        self.prof_all = False

    def start_profiling_op(self, op_name_list: Sequence[str]) -> None:
        """Log these too."""
        self.prof_ops = list(dict.fromkeys([*self.prof_ops, *op_name_list]))

    def stop_profiling_op(self, op_name_list: Sequence[str]) -> None:
        """Log these no longer."""
        self.prof_ops = [name for name in self.prof_ops if name not in op_name_list]

    def append(self, raw_name: str, record_name: str, latency: float, msg_size: int) -> None:
        """Note a collective of `latency` milliseconds."""
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        if self.prof_all or raw_name in self.prof_ops:
            note(self.log, raw_name, msg_size, ranks, latency / 1000.0, record_name)

    def has_data(self) -> bool:
        """Whether anything was noted."""
        return bool(self.log.durations())

    def get_total_operations(self) -> int:
        """Calls noted."""
        return sum(row.count for row in self.log.rows())

    def get_operation_names(self) -> list[str]:
        """Names of the collectives noted."""
        return list(dict.fromkeys(row.name for row in self.log.rows()))

    def get_operation_summary(self, operation_name: str) -> dict[int, dict[str, Any]]:
        """By message size: count, milliseconds, bandwidths in Gbit/s."""
        return _summary(self.log).get(operation_name, {})

    def get_raw_data(self) -> dict[str, dict[int, list[float]]]:
        """Milliseconds of each call, by collective and message size."""
        data: dict[str, dict[int, list[float]]] = {}
        for (name, nbytes, _), seconds in self.log.durations().items():
            data.setdefault(name, {})[nbytes] = [1000.0 * value for value in seconds]
        return data

    def reset_data(self) -> None:
        """Forget everything."""
        self.log.reset()

    def log_all(
        self, print_log: bool = True, show_straggler: bool = False, return_dict: bool = False
    ) -> dict[str, Any] | None:
        """Log the table; all ranks must call this to see stragglers."""
        if print_log:
            _log_one(self.log, show_straggler)
        return _summary(self.log) if return_dict else None


def log_summary(show_straggler: bool = False, return_dict: bool = False) -> dict[str, Any] | None:
    """Log what section `comms_logger` has seen; all ranks must call this to see stragglers."""
    logs = [observer for observer in TAPS.observers if isinstance(observer, CommsLog)]
    if not logs:
        raise ConfigError(
            "log_summary: no collective is being logged; set comms_logger.enabled in the "
            "configuration of an engine that is still open"
        )
    for log in logs:
        _log_one(log, show_straggler)
    if not return_dict:
        return None
    return {name: row for log in logs for name, row in _summary(log).items()}


def _log_one(log: CommsLog, show_straggler: bool) -> None:
    joined = dist.is_available() and dist.is_initialized()
    log.log_summary(
        show_straggler=show_straggler,
        gather=_gather if joined else None,
        rank=dist.get_rank() if joined else 0,
    )


def _gather(mine: Any) -> list[Any]:
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    return everyone


def _summary(log: CommsLog) -> dict[str, dict[int, dict[str, Any]]]:
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for row in log.rows():
        found.setdefault(row.name, {})[row.nbytes] = {
            "count": row.count,
            "total_latency_ms": 1000.0 * row.seconds,
            "avg_latency_ms": 1000.0 * row.average,
            "tput_avg_gbps": _gbps(row.algorithm_bandwidth),
            "busbw_avg_gbps": _gbps(row.bus_bandwidth),
        }
    return found


def _gbps(rate: float | None) -> float | None:
    return None if rate is None else 8e-9 * rate


def calc_bw_log(comm_op: str, size: int, duration: float) -> tuple[float, float]:
    """Gbit/s of algorithm and bus for `duration` milliseconds; 0 without a formula."""
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    speed = bandwidth(comm_op, size, ranks, duration / 1000.0)
    return (8e-9 * speed.algorithm, 8e-9 * speed.bus) if speed else (0.0, 0.0)


def convert_size(size_bytes: int) -> str:
    """Bytes in binary units, e.g. `120.56 KB`."""
    if size_bytes == 0:
        return "0B"
    value, units = float(size_bytes), ["B", "KB", "MB", "GB", "TB", "PB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{round(value, 2)} {units[0]}"


def see_memory_usage(message: str, force: bool = False) -> None:
    """Log the memory in use, if `force`, on rank 0."""
    rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
    ds_profiler.see_memory_usage(message, force, rank=rank)


def memory_status(msg: str, print_rank: int = -1, reset_max: bool = False) -> None:
    """Log the memory in use on `print_rank` (-1: on all)."""
    rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
    if print_rank in (-1, rank):
        ds_profiler.see_memory_usage(msg, force=True)
    if reset_max and torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


class CudaEventTimer:
    """Milliseconds between two CUDA events."""

    def __init__(self, start_event: torch.cuda.Event, end_event: torch.cuda.Event) -> None:
        self.start_event, self.end_event = start_event, end_event

    def get_elapsed_msec(self) -> float:
        """Waits for the later event."""
        self.end_event.synchronize()
        return float(self.start_event.elapsed_time(self.end_event))
