"""Where activation checkpointing is found under its old import paths."""

from __future__ import annotations

_ADAPTER = "deepspeed.adapters.activation_checkpointing"

NAMES: dict[str, dict[str, str] | str] = {
    "deepspeed.checkpointing": _ADAPTER,
    "deepspeed.runtime.activation_checkpointing.checkpointing": _ADAPTER,
    "deepspeed.runtime.activation_checkpointing": {"checkpointing": _ADAPTER},
    "deepspeed.runtime.activation_checkpointing.config": {
        "DeepSpeedActivationCheckpointingConfig": "ds_core.sections:ActivationCheckpointingSection",
    },
}
