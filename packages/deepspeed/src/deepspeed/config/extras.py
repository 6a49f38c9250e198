"""What a configuration needs that is not installed, for `ds_config check`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from deepspeed import registry
from deepspeed.config.faults import Fault
from deepspeed.config.load import Config
from deepspeed.config.sections import how_to_install

_LIBRARIES = {
    "tensorboard": ("tensorboard", "tensorboard"),
    "wandb": ("wandb", "wandb"),
    "comet": ("comet_ml", "comet-ml"),
}
"""Section -> the module it imports once enabled, the distribution that has it."""


def missing_extras(config: Config) -> tuple[Fault, ...]:
    """A fault for each section that asks for what is not there."""
    return (*_libraries(config.sections), *_stores(config.sections.get("zero_optimization")))


def _libraries(sections: Mapping[str, Any]) -> Iterator[Fault]:
    for name, (module, distribution) in _LIBRARIES.items():
        section = sections.get(name)
        if section is not None and section.enabled and find_spec(module) is None:
            text = (
                f"true needs the library {module}, not installed here: pip install {distribution}"
            )
            yield Fault(f"{name}.enabled", text)


def _stores(zero: Any) -> Iterator[Fault]:
    """`zero` is the section of ds-zero or None, and so Any."""
    for part in ("offload_optimizer", "offload_param"):
        section = getattr(zero, part, None)
        if getattr(section, "device", "none") != "nvme":
            continue
        if "nvme" not in registry.offered("tensor_stores"):
            text = f"'nvme' needs ds-aio, not installed here: {how_to_install('ds-aio')}"
            yield Fault(f"zero_optimization.{part}.device", text)
