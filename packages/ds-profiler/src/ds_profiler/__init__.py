"""Exact flops, time and memory of any PyTorch module; timers, collective log, monitors."""

from ds_profiler.cost import Cost
from ds_profiler.errors import MissingExtra, ProfilerError, UsageError
from ds_profiler.model_profile import get_model_profile
from ds_profiler.profiler import FlopsProfiler
from ds_profiler.profiling import profile
from ds_profiler.result import ModuleProfile, OperatorProfile, Profile, Work
from ds_profiler.rules import Rule, RuleBook, default_rules

__version__ = "0.1.0"

__all__ = [
    "Cost",
    "FlopsProfiler",
    "MissingExtra",
    "ModuleProfile",
    "OperatorProfile",
    "Profile",
    "ProfilerError",
    "Rule",
    "RuleBook",
    "UsageError",
    "Work",
    "__version__",
    "default_rules",
    "get_model_profile",
    "profile",
]
