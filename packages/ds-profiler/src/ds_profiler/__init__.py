"""Exact flops, time and memory of any PyTorch module; timers, collective log, monitors."""

from ds_profiler.bandwidth import Bandwidth, bandwidth
from ds_profiler.comms_log import CommsLog
from ds_profiler.cost import Cost
from ds_profiler.errors import MissingExtra, ProfilerError, UsageError
from ds_profiler.memory import estimate_training_memory, memory_use, see_memory_usage
from ds_profiler.model_profile import get_model_profile
from ds_profiler.monitors import (
    CometMonitor,
    CsvMonitor,
    MonitorMaster,
    TensorBoardMonitor,
    WandbMonitor,
)
from ds_profiler.profiler import FlopsProfiler, RunFacts
from ds_profiler.profiling import profile
from ds_profiler.report import (
    chrome_trace,
    compare,
    comparison_text,
    html_report,
    rich_table,
    text_report,
    write_report,
)
from ds_profiler.result import ModuleProfile, OperatorProfile, Profile, Work
from ds_profiler.rules import Rule, RuleBook, default_rules
from ds_profiler.timers import NoopTimer, SynchronizedWallClockTimer, ThroughputTimer

__version__ = "0.1.0"

__all__ = [
    "Bandwidth",
    "CometMonitor",
    "CommsLog",
    "Cost",
    "CsvMonitor",
    "FlopsProfiler",
    "MissingExtra",
    "ModuleProfile",
    "MonitorMaster",
    "NoopTimer",
    "OperatorProfile",
    "Profile",
    "ProfilerError",
    "Rule",
    "RuleBook",
    "RunFacts",
    "SynchronizedWallClockTimer",
    "TensorBoardMonitor",
    "ThroughputTimer",
    "UsageError",
    "WandbMonitor",
    "Work",
    "__version__",
    "bandwidth",
    "chrome_trace",
    "compare",
    "comparison_text",
    "default_rules",
    "estimate_training_memory",
    "get_model_profile",
    "html_report",
    "memory_use",
    "profile",
    "rich_table",
    "see_memory_usage",
    "text_report",
    "write_report",
]
