"""The parts of the JSON configuration that this package acts on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from ds_profiler.errors import UsageError


def _setting(default: Any, doc: str, **rules: Any) -> Any:
    return field(default=default, metadata={"doc": doc, **rules})


@dataclass(frozen=True)
class FlopsProfilerSection:
    """Profile one training step and report it."""

    enabled: bool = _setting(False, "profile a step")
    recompute_fwd_factor: float = _setting(
        0.0, "no effect: recomputed forward passes are counted, not estimated", ge=0
    )
    profile_step: int = _setting(1, "the global step to profile", ge=1)
    module_depth: int = _setting(-1, "depth of the aggregated report; -1 reports all", ge=-1)
    top_modules: int = _setting(1, "kinds of modules to list at a depth", ge=1)
    detailed: bool = _setting(True, "report the tree of all modules")
    output_file: str | None = _setting(
        None, "where to write: .html, .json or text; null writes text to standard output"
    )
    peak_tflops: float | None = _setting(
        None, "what a device can do, in 1e12 operations a second, for its utilisation", gt=0
    )


@dataclass(frozen=True)
class WallClockBreakdownSection:
    """Time the phases of each step. In JSON also just `true` or `false`."""

    enabled: bool = _setting(False, "time the phases of each step")


@dataclass(frozen=True)
class ThroughputSection:
    """Measure samples a second."""

    enabled: bool = _setting(True, "measure samples a second")
    synchronized: bool = _setting(False, "wait for the device at each reading")


@dataclass(frozen=True)
class TimersSection:
    """Timers that run beside training."""

    throughput: ThroughputSection = field(
        default_factory=ThroughputSection, metadata={"doc": "samples a second"}
    )


@dataclass(frozen=True)
class CommsLoggerSection:
    """Log every collective."""

    enabled: bool = _setting(False, "log collectives")
    prof_all: bool = _setting(True, "log all of them, not only `prof_ops`")
    prof_ops: list[str] = field(
        default_factory=list, metadata={"doc": "names of the collectives to log if not all"}
    )
    verbose: bool = _setting(False, "log a line for each")
    debug: bool = _setting(False, "keep calls apart by what they are for")


@dataclass(frozen=True)
class TensorBoardSection:
    """Write scalars for TensorBoard."""

    enabled: bool = _setting(False, "write event files")
    output_path: str = _setting("", "folder; empty means the current one")
    job_name: str = _setting("DeepSpeedJobName", "folder in it")


@dataclass(frozen=True)
class WandbSection:
    """Log scalars to Weights & Biases."""

    enabled: bool = _setting(False, "log to wandb")
    group: str | None = _setting(None, "group of runs")
    team: str | None = _setting(None, "team (entity)")
    project: str = _setting("deepspeed", "project")


@dataclass(frozen=True)
class CometSection:
    """Log scalars to Comet."""

    enabled: bool = _setting(False, "log to Comet")
    samples_log_interval: int = _setting(100, "samples between two values of a label", ge=1)
    project: str | None = _setting(None, "project")
    workspace: str | None = _setting(None, "workspace")
    api_key: str | None = _setting(None, "API key; better kept in Comet's own configuration")
    experiment_name: str | None = _setting(None, "name of the experiment")
    experiment_key: str | None = _setting(None, "key of the experiment: 32 to 50 characters")
    online: bool | None = _setting(None, "false keeps data in a local archive")
    mode: Literal["get", "create", "get_or_create"] | None = _setting(
        None, "whether to go on with an experiment or to start one"
    )


@dataclass(frozen=True)
class CsvSection:
    """Write scalars to CSV files."""

    enabled: bool = _setting(False, "write CSV files")
    output_path: str = _setting("", "folder; empty means the current one")
    job_name: str = _setting("DeepSpeedJobName", "folder in it")


@dataclass(frozen=True)
class MonitorSections:
    """The sections of all monitors."""

    tensorboard: TensorBoardSection = field(default_factory=TensorBoardSection)
    comet: CometSection = field(default_factory=CometSection)
    wandb: WandbSection = field(default_factory=WandbSection)
    csv_monitor: CsvSection = field(default_factory=CsvSection)

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> MonitorSections:
        """From a configuration dict; keys of other sections are ignored, unknown ones in these
        are refused by name."""
        kinds: dict[str, type] = {
            "tensorboard": TensorBoardSection,
            "comet": CometSection,
            "wandb": WandbSection,
            "csv_monitor": CsvSection,
        }
        return cls(**{name: _read(kind, name, config.get(name)) for name, kind in kinds.items()})

    @property
    def enabled(self) -> bool:
        """Whether any monitor is."""
        parts = (self.tensorboard, self.comet, self.wandb, self.csv_monitor)
        return any(part.enabled for part in parts)


def _read(kind: type, name: str, values: Mapping[str, Any] | None) -> Any:
    values = values or {}
    known = {item.name for item in fields(kind)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise UsageError(f"{name}.{unknown[0]}: unknown key; known are {', '.join(sorted(known))}")
    return kind(**values)
