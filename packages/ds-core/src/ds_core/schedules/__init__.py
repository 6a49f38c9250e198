"""Learning rate schedules, for any optimizer with parameter groups."""

from ds_core.schedules.base import Schedule, set_rates
from ds_core.schedules.build import SCHEDULES, build_schedule, schedule_faults
from ds_core.schedules.exponential import WarmupExpDecayExp, warmup_exp_decay_exp
from ds_core.schedules.one_cycle import OneCycle
from ds_core.schedules.range_test import LRRangeTest
from ds_core.schedules.warmup import LINEAR, LOG, WarmupCosineLR, WarmupDecayLR, WarmupLR

__all__ = [
    "LINEAR",
    "LOG",
    "LRRangeTest",
    "OneCycle",
    "SCHEDULES",
    "Schedule",
    "WarmupCosineLR",
    "WarmupDecayLR",
    "WarmupExpDecayExp",
    "WarmupLR",
    "build_schedule",
    "schedule_faults",
    "set_rates",
    "warmup_exp_decay_exp",
]
