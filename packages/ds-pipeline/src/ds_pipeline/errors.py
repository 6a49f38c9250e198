"""The exceptions of ds-pipeline."""

from __future__ import annotations

from ds_core.errors import ConfigError, DSError


class PipelineError(DSError, RuntimeError):
    """A pipeline that cannot go on: a stage that is lost, or a call that does not fit."""


class PartitionError(ConfigError):
    """Layers that cannot be divided into stages as asked."""


class ScheduleError(PipelineError):
    """A schedule that would hang, or does its work in an impossible order."""
