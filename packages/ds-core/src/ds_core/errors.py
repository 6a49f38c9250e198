"""The exceptions of ds-core, all derived from one root."""

from __future__ import annotations


class DSError(Exception):
    """Root of every error this package raises on purpose."""


class ConfigError(DSError, ValueError):
    """A setting or argument that cannot be used, with the rule and the remedy."""


class StateError(DSError, RuntimeError):
    """A call that does not fit the object's state (a closed engine, a missing backward)."""


class CheckpointError(DSError, RuntimeError):
    """A checkpoint that is missing, damaged or does not fit the model."""


class RankMismatchError(DSError, RuntimeError):
    """Ranks that should agree do not; the message says which rank holds what."""


class CollectiveTimeout(DSError, TimeoutError):
    """A collective did not finish in time; the message says who waits for what."""
