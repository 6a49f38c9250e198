"""The JSON configuration: read, checked, explained."""

from deepspeed.config.batch import BatchSizes, WorldSize
from deepspeed.config.faults import ConfigFaults, Fault
from deepspeed.config.load import Config, inspect_config, load_config
from deepspeed.config.source import resolve_source
from ds_core.errors import ConfigError

__all__ = [
    "BatchSizes",
    "Config",
    "ConfigError",
    "ConfigFaults",
    "Fault",
    "WorldSize",
    "inspect_config",
    "load_config",
    "resolve_source",
]
