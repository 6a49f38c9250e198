"""Where profiler, timers, monitors and the collective log are found under old import paths."""

from __future__ import annotations

_ADAPTED = "deepspeed.adapters.profiler"
_BY_NAME = "!numbers are not kept on modules: read FlopsProfiler(model).result['module.name']"
_UNITS = (
    "bytes_to_string",
    "duration_to_string",
    "flops_to_string",
    "macs_to_string",
    "number_to_string",
    "params_to_string",
)

_PROFILER = {
    "FlopsProfiler": f"{_ADAPTED}:FlopsProfiler",
    "get_model_profile": "ds_profiler:get_model_profile",
    **{name: f"ds_profiler.units:{name}" for name in _UNITS},
    "get_module_duration": _BY_NAME,
    "get_module_flops": _BY_NAME,
    "get_module_macs": _BY_NAME,
    "wrapFunc": "!nothing is patched: add a rule with ds_profiler.default_rules().with_rule(...)",
}

_TIMERS = {
    "CudaEventTimer": f"{_ADAPTED}:CudaEventTimer",
    "NoopTimer": "ds_profiler:NoopTimer",
    "SynchronizedWallClockTimer": "ds_profiler:SynchronizedWallClockTimer",
    "ThroughputTimer": f"{_ADAPTED}:ThroughputTimer",
    "trim_mean": "ds_profiler.timers:trim_mean",
    **{
        name: f"ds_profiler.timer_names:{name}"
        for name in (
            "BACKWARD_GLOBAL_TIMER",
            "BACKWARD_INNER_GLOBAL_TIMER",
            "BACKWARD_INNER_MICRO_TIMER",
            "BACKWARD_MICRO_TIMER",
            "BACKWARD_REDUCE_GLOBAL_TIMER",
            "BACKWARD_REDUCE_MICRO_TIMER",
            "FORWARD_GLOBAL_TIMER",
            "FORWARD_MICRO_TIMER",
            "STEP_GLOBAL_TIMER",
            "STEP_MICRO_TIMER",
        )
    },
}

NAMES: dict[str, dict[str, str]] = {
    "deepspeed.profiling.flops_profiler": _PROFILER,
    "deepspeed.profiling.flops_profiler.profiler": _PROFILER,
    "deepspeed.profiling.config": {
        "DeepSpeedFlopsProfilerConfig": f"{_ADAPTED}:DeepSpeedFlopsProfilerConfig",
    },
    "deepspeed.monitor.monitor": {
        "Monitor": "ds_profiler.monitors:Monitor",
        "MonitorMaster": "ds_profiler:MonitorMaster",
        "TensorBoardMonitor": f"{_ADAPTED}:TensorBoardMonitor",
        "WandbMonitor": f"{_ADAPTED}:WandbMonitor",
        "CometMonitor": f"{_ADAPTED}:CometMonitor",
        "csvMonitor": f"{_ADAPTED}:csvMonitor",
    },
    "deepspeed.monitor.tensorboard": {"TensorBoardMonitor": f"{_ADAPTED}:TensorBoardMonitor"},
    "deepspeed.monitor.wandb": {"WandbMonitor": f"{_ADAPTED}:WandbMonitor"},
    "deepspeed.monitor.comet": {"CometMonitor": f"{_ADAPTED}:CometMonitor"},
    "deepspeed.monitor.csv_monitor": {"csvMonitor": f"{_ADAPTED}:csvMonitor"},
    "deepspeed.monitor.config": {
        "CSVConfig": "ds_profiler.sections:CsvSection",
        "CometConfig": "ds_profiler.sections:CometSection",
        "DeepSpeedMonitorConfig": "ds_profiler.sections:MonitorSections",
        "TensorBoardConfig": "ds_profiler.sections:TensorBoardSection",
        "WandbConfig": "ds_profiler.sections:WandbSection",
        "get_monitor_config": f"{_ADAPTED}:get_monitor_config",
    },
    "deepspeed.comm.config": {
        "CommsLoggerConfig": "ds_profiler.sections:CommsLoggerSection",
    },
    "deepspeed.utils.config": {
        "DeepSpeedThroughputTimerConfig": "ds_profiler.sections:ThroughputSection",
    },
    "deepspeed.utils.timer": _TIMERS,
    "deepspeed.utils.comms_logging": {
        "CommsLogger": f"{_ADAPTED}:CommsLogger",
        "calc_bw_log": f"{_ADAPTED}:calc_bw_log",
        "convert_size": f"{_ADAPTED}:convert_size",
        "get_caller_func": "!calls carry a label instead: comms_logger.debug keeps them apart",
        "print_rank_0": "!use logging, or deepspeed.utils.logging.log_dist(message, ranks=[0])",
    },
    "deepspeed.runtime.utils": {
        "memory_status": f"{_ADAPTED}:memory_status",
        "see_memory_usage": f"{_ADAPTED}:see_memory_usage",
    },
    "deepspeed.runtime.engine": {
        "EngineTimers": "!the engine keeps no timers: set wall_clock_breakdown in the JSON",
    },
}
