"""Where the learning rate schedules are found under their old import path."""

from __future__ import annotations

_CLASSES = (
    "LRRangeTest",
    "OneCycle",
    "WarmupCosineLR",
    "WarmupDecayLR",
    "WarmupExpDecayExp",
    "WarmupLR",
)

_ADAPTED = (
    "LR_SCHEDULE",
    "LR_RANGE_TEST",
    "ONE_CYCLE",
    "WARMUP_LR",
    "WARMUP_DECAY_LR",
    "WARMUP_COSINE_LR",
    "VALID_LR_SCHEDULES",
    "LR_RANGE_TEST_MIN_LR",
    "LR_RANGE_TEST_STEP_RATE",
    "LR_RANGE_TEST_STEP_SIZE",
    "LR_RANGE_TEST_STAIRCASE",
    "EDGE_VALUE",
    "MID_VALUE",
    "CYCLE_FIRST_STEP_SIZE",
    "CYCLE_FIRST_STAIR_COUNT",
    "CYCLE_SECOND_STEP_SIZE",
    "CYCLE_SECOND_STAIR_COUNT",
    "DECAY_STEP_SIZE",
    "CYCLE_MIN_LR",
    "CYCLE_MAX_LR",
    "DECAY_LR_RATE",
    "CYCLE_MIN_MOM",
    "CYCLE_MAX_MOM",
    "DECAY_MOM_RATE",
    "WARMUP_MIN_LR",
    "WARMUP_MAX_LR",
    "WARMUP_NUM_STEPS",
    "WARMUP_TYPE",
    "WARMUP_LOG_RATE",
    "WARMUP_LINEAR_RATE",
    "WARMUP_MIN_RATIO",
    "COS_MIN_RATIO",
    "TOTAL_NUM_STEPS",
    "get_torch_optimizer",
)

NAMES: dict[str, dict[str, str]] = {
    "deepspeed.runtime.lr_schedules": {
        **{name: f"ds_core.schedules:{name}" for name in _CLASSES},
        **{name: f"deepspeed.adapters.lr_schedules:{name}" for name in _ADAPTED},
        "update_lr": "ds_core.schedules:set_rates",
    },
}
