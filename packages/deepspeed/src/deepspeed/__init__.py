"""The whole training engine under the name that programs already use.

Names are imported when they are used, so that `import deepspeed` costs little more than torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from deepspeed import legacy as _legacy

__version__ = "0.20.0"
version = __version__

_NAMES = {
    "initialize": "deepspeed.wiring",
    "init_distributed": "deepspeed.distributed",
    "add_config_arguments": "deepspeed.arguments",
    "add_tuning_arguments": "deepspeed.arguments",
    "get_accelerator": "deepspeed.accelerator",
    "DeepSpeedEngine": "deepspeed.engine",
    "DeepSpeedOptimizer": "deepspeed.optimizer_face",
    "DeepSpeedDataLoader": "deepspeed.dataloader",
    "RepeatingLoader": "deepspeed.dataloader",
    "DeepSpeedConfig": "deepspeed.config.legacy",
    "ConfigError": "deepspeed.config",
    "DeepSpeedConfigError": "deepspeed.config:ConfigError",
    "load_ds_config": "deepspeed.config.legacy",
    "git_hash": "deepspeed.git_version_info",
    "git_branch": "deepspeed.git_version_info",
}

if TYPE_CHECKING:
    from deepspeed.accelerator import get_accelerator as get_accelerator
    from deepspeed.arguments import add_config_arguments as add_config_arguments
    from deepspeed.arguments import add_tuning_arguments as add_tuning_arguments
    from deepspeed.config.legacy import DeepSpeedConfig as DeepSpeedConfig
    from deepspeed.dataloader import DeepSpeedDataLoader as DeepSpeedDataLoader
    from deepspeed.distributed import init_distributed as init_distributed
    from deepspeed.engine import DeepSpeedEngine as DeepSpeedEngine
    from deepspeed.wiring import initialize as initialize

_legacy.install()


def __getattr__(name: str) -> Any:
    module, _, attribute = _NAMES.get(name, "").partition(":")
    if module:
        value = getattr(importlib.import_module(module), attribute or name)
    elif name in _legacy.names_of(__name__):
        value = _legacy.resolve(_legacy.names_of(__name__)[name], f"{__name__}.{name}")
    elif not name.startswith("_"):
        try:
            value = importlib.import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES, *_legacy.names_of(__name__)})
