"""Which top-level names of the JSON exist, and who serves them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ds_core.errors import ConfigError

GROUP = "deepspeed.sections"

PROVIDERS = {
    "activation_checkpointing": "ds-core",
    "bf16": "ds-core",
    "checkpoint": "ds-core",
    "data_types": "ds-core",
    "fp16": "ds-core",
    "optimizer": "ds-core",
    "scheduler": "ds-core",
    "torch_autocast": "ds-core",
    "zero_optimization": "ds-zero",
    "pipeline": "ds-pipeline",
    "aio": "ds-aio",
    "curriculum_learning": "ds-data",
    "data_efficiency": "ds-data",
    "progressive_layer_drop": "ds-data",
    "comet": "ds-profiler",
    "comms_logger": "ds-profiler",
    "csv_monitor": "ds-profiler",
    "flops_profiler": "ds-profiler",
    "tensorboard": "ds-profiler",
    "timers": "ds-profiler",
    "wall_clock_breakdown": "ds-profiler",
    "wandb": "ds-profiler",
}
"""Section -> the package whose installation makes it work."""

UNSERVED = {
    "amp": "use 'bf16', 'fp16' or 'torch_autocast' instead",
    "autotuning": "try batch sizes and stages by hand; `ds_config check` estimates memory",
    "compile": "call torch.compile or engine.compile() instead",
    "compression_training": "compress the model before or after training",
    "datastates_ckpt": "use checkpoint.writer.decoupled for saves in the background",
    "eigenvalue": "remove it",
    "elasticity": "checkpoints load at any world size: give batch sizes that fit it instead",
    "expert_parallel": "remove it",
    "hybrid_engine": "generate with the module inside zero.GatheredParameters instead",
    "msamp": "remove it",
    "nebula": "use checkpoint.writer.decoupled for saves in the background",
    "quantize_training": "remove it",
    "sparse_attention": "use torch.nn.attention.flex_attention in the model instead",
    "tensor_parallel": "parallelise the model before initialize and pass mpu",
    "weight_quantization": "quantize after training",
}
"""Sections that were known once or elsewhere and that no package of this release serves."""

ALIASES = {"bfloat16": "bf16"}
"""Old section names that mean a new one."""

SHORTHAND: dict[str, Callable[[bool], dict[str, Any]]] = {
    "zero_optimization": lambda value: {"stage": int(value)},
}
"""How a bare `true` or `false` reads in sections without an `enabled` key."""

_IDLE: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "zero_optimization": lambda raw: raw.get("stage", 0) == 0,
    "tensor_parallel": lambda raw: raw.get("autotp_size", 0) in (0, 1, None, "auto"),
    "compile": lambda raw: not raw.get("deepcompile", False),
    "sparse_attention": lambda raw: False,
    "pipeline": lambda raw: False,
    "aio": lambda raw: False,
    "timers": lambda raw: not raw.get("enabled", True),
    "data_efficiency": lambda raw: raw.get("enabled") is False or not _any_enabled(raw),
    "compression_training": lambda raw: not _any_enabled(raw),
}


class InstalledSections(Mapping[str, type]):
    """The sections of every installed package; a package is imported when its section is used."""

    def __init__(self) -> None:
        self._points: dict[str, EntryPoint] = {
            point.name: point for point in entry_points(group=GROUP)
        }

    def __getitem__(self, name: str) -> type:
        point = self._points[name]
        try:
            loaded: type = point.load()
        except (ImportError, AttributeError) as error:
            origin = point.dist.name if point.dist else "an unknown package"
            message = f"section {name!r} of {origin} cannot be loaded from {point.value}: {error}"
            raise ConfigError(message) from error
        return loaded

    def __iter__(self) -> Iterator[str]:
        return iter(self._points)

    def __len__(self) -> int:
        return len(self._points)


def is_idle(name: str, raw: object) -> bool:
    """True if the section asks for nothing, so that nobody need serve it."""
    if raw is None or raw is False:
        return True
    if not isinstance(raw, Mapping):
        return False
    rule = _IDLE.get(name)
    return rule(raw) if rule else not raw.get("enabled", False)


def why_unserved(name: str) -> str:
    """The message for a section that nothing installed serves."""
    if name in PROVIDERS:
        package = PROVIDERS[name]
        return f"nothing installed serves this section; {how_to_install(package)}"
    return f"no package of this release serves this section; {UNSERVED[name]}"


def how_to_install(package: str) -> str:
    """The command for one of our packages, which no index has yet."""
    return f"pip install {package} (from a clone: packages/{package})"


def known_names(installed: Mapping[str, type]) -> list[str]:
    """Every section name that means something, installed or not."""
    return sorted({*installed, *PROVIDERS, *UNSERVED, *ALIASES})


def _any_enabled(raw: Mapping[str, Any]) -> bool:
    return any(
        value is True if key == "enabled" else isinstance(value, Mapping) and _any_enabled(value)
        for key, value in raw.items()
    )
